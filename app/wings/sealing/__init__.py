"""Contents sealed with a key for each tenant."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, SecretStr, field_validator

from app.runtime.wing import Wing

if TYPE_CHECKING:
    import typer

    from app.store.engine import Database
    from app.wings.sealing.service import Keyring


class SealingSettings(BaseModel):
    """Settings of sealed contents."""

    encryption_key: SecretStr | None = Field(
        None,
        description="Key that encrypts each tenant's content key. Once it is set, new contents are encrypted in the"
        " database; `palimpsest contents new-key` prints a key. If several are given, separated by commas, the first"
        " encrypts and all decrypt.",
    )

    @field_validator("encryption_key")
    @classmethod
    def _check_encryption_key(cls, given: SecretStr | None) -> SecretStr | None:
        if given is not None:
            from app.wings.sealing.service import parse_keys

            try:
                parse_keys(given.get_secret_value())
            except ValueError:
                raise ValueError("must be one or several keys as `palimpsest contents new-key` prints them") from None
        return given


def _ciphers(settings: SealingSettings, database: "Database") -> "Keyring":
    from app.wings.sealing.service import Keyring

    operator = settings.encryption_key
    return Keyring(database, None if operator is None else operator.get_secret_value())


def _commands(app: "typer.Typer") -> None:
    from app.wings.sealing.commands import contents

    app.add_typer(contents, name="contents")


WING = Wing(settings=SealingSettings, ciphers=_ciphers, commands=_commands)
