"""A box to configure."""

from boxes import box

__all__ = ["box"]
