"""``octavo pull``: fetches a model's files.

Owns: nothing but the words. Must not know: where models come from.
"""

import click


@click.command("pull")
@click.argument("model")
def command(model: str) -> None:
    """Fetch MODEL, an alias or a hub id, so that it works offline afterwards; prints where its files are."""
    from octavo.models.sources import pull_model

    click.echo(pull_model(model).path)
