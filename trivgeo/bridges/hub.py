"""Models on a hub: ``save_pretrained``, ``push_to_hub`` and ``from_pretrained`` of huggingface_hub for our files.

```python
from trivgeo.bridges.hub import HubGroupDiffusion

model = HubGroupDiffusion.load("poses.safetensors", SE(3))  # or fit one
model.push_to_hub("me/poses")
model = HubGroupDiffusion.from_pretrained("me/poses", group=SE(3))
```

A repository holds the file that `save` writes, ``model.safetensors``, and a card. Files hold numbers and settings, and
no code: reading one from a stranger runs nothing.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any, Self

from trivgeo import __version__
from trivgeo.bridges.base import base_class
from trivgeo.generative import GroupDiffusion
from trivgeo.inversion import LearnedInverter

__all__ = ["HubGroupDiffusion", "HubLearnedInverter", "HubMixin"]

FILE = "model.safetensors"
"""Name of the file of weights in a repository."""

_CARD = """---
{{ card_data }}
---

A model of the library trivgeo: `{{ model }}`, {{ about }}.

```python
from trivgeo.bridges.hub import {{ model }}

model = {{ model }}.from_pretrained("this repository", {{ arguments }})
```
"""

_ModelHubMixin: Any = base_class("huggingface_hub", "ModelHubMixin", "huggingface_hub")


class HubMixin(_ModelHubMixin, library_name="trivgeo", model_card_template=_CARD):  # type: ignore[call-arg]
    """Mixin that puts models with ``save(path)`` and ``load(path, ...)`` on a hub and reads them from there.

    Put it before the class of a model: ``class HubScore(HubMixin, Score): ...``. Then

    - ``save_pretrained(folder)`` writes the file, a card and what made them;
    - ``push_to_hub("user/name")`` puts these into a repository;
    - ``from_pretrained("user/name", ...)``, or with a folder in place of the name, takes the arguments of ``load``
      behind the path, by keyword.

    Raises:
        ConfigurationError: huggingface_hub is not installed.
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory / FILE)
        # names of no argument of a constructor: the mixin hands those on
        entries = {"library_name": "trivgeo", "trivgeo_version": __version__, "model_class": type(self).__name__}
        (save_directory / "config.json").write_text(json.dumps(entries, indent=2, sort_keys=True))

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **arguments: Any,
    ) -> Self:
        path = os.path.join(model_id, FILE)
        if not os.path.isdir(model_id):
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(
                repo_id=model_id,
                filename=FILE,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                token=token,
                local_files_only=local_files_only,
            )
        return cls.load(path, **arguments)

    def generate_model_card(self, **arguments: Any) -> Any:
        """Return the card, ``README.md`` of the repository; ``arguments`` replace what its template is given."""
        names = list(inspect.signature(self.load).parameters)[1:2]
        given = {
            "model": type(self).__name__,
            "about": repr(getattr(self, "group", None) or self.action),
            "arguments": ", ".join(f"{name}=..." for name in names),
        }
        return super().generate_model_card(**{**given, **arguments})


class HubGroupDiffusion(HubMixin, GroupDiffusion):
    """`trivgeo.generative.GroupDiffusion` with the methods of `HubMixin`; ``from_pretrained(name, group=...)``."""


class HubLearnedInverter(HubMixin, LearnedInverter):
    """`trivgeo.inversion.LearnedInverter` with the methods of `HubMixin`; ``from_pretrained(name, action=...)``."""
