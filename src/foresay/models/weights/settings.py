"""Settings of a model, checked when they are read: of a config.json, of a part of it, of a GGUF
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foresay.errors import ModelError

__all__ = ["Settings"]

_MOST = (1 << 31) - 1


class Settings:
    """Settings by name. One that is null counts as missing.

    where  names the model in errors
    shown  how an error shows the name of a setting
    """

    def __init__(self, values: Mapping[str, Any], where: str, shown: str = "'{}'") -> None:
        self.values, self.where, self._shown = values, where, shown

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        """A whole number from 1.

        Raises: ModelError for another value, or a setting that is missing and has no default; so do
        the others.
        """
        value = self._get(key, default)
        if type(value) is not int or not 1 <= value <= most:
            upto = f" to {most}" if most < _MOST else ""
            raise self.wrong(key, value, f"a whole number from 1{upto}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a word")
        return value

    def inner(self, key: str) -> dict[str, Any]:
        """Settings inside; none where it is missing."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return value

    def inside(self, values: Mapping[str, Any]) -> Settings:
        """Other settings of the same model."""
        return Settings(values, self.where, self._shown)

    def wrong(self, key: str, value: object, valid: str) -> ModelError:
        """The error to raise for a value that is not valid."""
        return ModelError(
            f"{self.where}: {self._shown.format(key)} is {value!r:.60}; expected {valid}"
        )

    def _get(self, key: str, default: Any) -> Any:
        if key in self:
            return self.values[key]
        if default is None:
            raise ModelError(f"{self.where} has no setting {self._shown.format(key)}; expected it")
        return default
