"""`load_model_files`: a model folder and a GGUF file, opened whole."""

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.errors import CheckpointError, ConfigError
from octavo.models.model_files import load_model_files

MESSAGES = [{"role": "user", "content": "hi"}]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "ab"]


def write_folder(folder, **tokenizer_config):
    """Writes a model folder of one tensor and a tokenizer of letters."""
    backend = Backend(models.BPE({token: token_id for token_id, token in enumerate(["<s>", "</s>", *LETTERS])}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    save_file({"w": np.arange(3, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9], "top_k": 7}))
    config = {"bos_token": "<s>", "eos_token": "</s>", **tokenizer_config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_gguf(path, **templates: str):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<s>", "</s>", *LETTERS])
    writer.add_token_types([3, 3] + [1] * len(LETTERS))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, text in templates.items():
        writer.add_string("tokenizer.chat_template" + ("" if name == "default" else f".{name}"), text)
    writer.add_tensor("w", np.arange(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_is_opened_whole(tmp_path):
    files = load_model_files(str(write_folder(tmp_path, chat_template="{{ bos_token }}{{ messages[0].content }}")))
    assert files.name == tmp_path.name
    assert files.source.naming == "hf"
    assert files.source.read("w").data.tolist() == [0, 1, 2]
    assert files.description["model_type"] == "llama"
    assert files.defaults.sampling == {"top_k": 7}
    assert files.defaults.end_token_ids == {1, 2, 9}
    rendered = files.chat_template.render(MESSAGES)
    assert rendered == "<s>hi"
    assert files.tokenizer.encode_chat(rendered) == [0, 9, 10]


def test_a_gguf_file_is_opened_whole(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", default="{{ messages[0].content }}{{ eos_token }}", tool_use="T")
    files = load_model_files(str(path))
    assert files.name == "tiny"
    assert files.source.naming == "gguf"
    assert files.source.read("w").data.tolist() == [0, 1, 2]
    assert files.description["general.architecture"] == "llama"
    assert files.defaults.end_token_ids == {1}
    assert files.chat_template.render(MESSAGES) == "hi</s>"
    assert files.chat_template.render(MESSAGES, tools=[{}]) == "T"


def test_a_model_without_a_template_has_none(tmp_path):
    assert load_model_files(str(write_folder(tmp_path))).chat_template is None
    assert load_model_files(str(write_gguf(tmp_path / "tiny.gguf"))).chat_template is None


def test_templates_are_looked_for_in_files_before_settings(tmp_path):
    named = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "named tools"}]
    write_folder(tmp_path, chat_template=named)
    template = load_model_files(str(tmp_path)).chat_template
    assert (template.render(MESSAGES), template.render(MESSAGES, tools=[{}])) == ("named", "named tools")
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file tools")
    template = load_model_files(str(tmp_path)).chat_template
    assert (template.render(MESSAGES), template.render(MESSAGES, tools=[{}])) == ("file", "file tools")


def test_the_older_json_file_with_a_template_is_read(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert load_model_files(str(tmp_path)).chat_template.render(MESSAGES) == "older"


def test_a_template_file_of_the_user_goes_first(tmp_path):
    mine = tmp_path / "mine.jinja"
    mine.write_text("mine")
    write_folder(tmp_path, chat_template="the model's")
    assert load_model_files(str(tmp_path), chat_template=mine).chat_template.render(MESSAGES) == "mine"
    path = write_gguf(tmp_path / "tiny.gguf", default="the model's")
    assert load_model_files(str(path), chat_template=mine).chat_template.render(MESSAGES) == "mine"


def test_a_template_file_that_cannot_be_read_is_named(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"missing\.jinja"):
        load_model_files(str(tmp_path), chat_template=tmp_path / "missing.jinja")
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with pytest.raises(ConfigError, match=r"latin\.jinja"):
        load_model_files(str(tmp_path), chat_template=tmp_path / "latin.jinja")


@pytest.mark.parametrize("template", [3, [{"name": "default"}], ["text"], {"default": "text"}])
def test_a_template_of_another_form_is_refused(tmp_path, template):
    with pytest.raises(CheckpointError, match="chat_template"):
        load_model_files(str(write_folder(tmp_path, chat_template=template)))


def test_importing_costs_none_of_the_libraries_that_a_model_may_not_need():
    heavy = {"gguf", "jinja2", "tokenizers", "huggingface_hub", "safetensors", "transformers", "torch"}
    code = f"import sys, octavo.models.model_files; print(*({heavy} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("file_name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, file_name):
    write_folder(tmp_path)
    (tmp_path / file_name).unlink()
    with pytest.raises(CheckpointError, match=file_name):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize("file_name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "[" * 100_000, b"\xff\xfe"])
def test_damaged_json_is_named(tmp_path, file_name, text):
    write_folder(tmp_path)
    (tmp_path / file_name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match=file_name):
        load_model_files(str(tmp_path))
