"""The settings of every unit test hold here, too."""

from unit.conftest import root_level

__all__ = ["root_level"]
