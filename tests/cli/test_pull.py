"""octavo.cli.pull: prints where the files are, and says in one line why there are none."""

from pathlib import Path

from octavo.cli.main import main


def test_prints_the_path_of_a_model_that_is_here(tmp_path: Path, capsys) -> None:
    model = tmp_path / "with space.gguf"
    model.touch()
    assert main(["pull", str(model)]) == 0
    assert capsys.readouterr().out == f"{model}\n"


def test_unknown_alias_names_the_closest(capsys) -> None:
    assert main(["pull", "smollm2-136m"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert "smollm2-136m" in error
    assert hint == "hint: did you mean smollm2-135m?"
