"""Write the defaults of transformers' config classes to the data file: ``python -m tests.interop.regen_defaults``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "src" / "assay" / "interop" / "data" / "hf_defaults.json"


def recorded() -> dict[str, Any]:
    """The defaults of every supported family, as transformers has them now."""
    import transformers
    from transformers import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from assay.interop.families import families

    base = {f.name for f in dataclasses.fields(PreTrainedConfig)}
    out: dict[str, Any] = {}
    for model_type in sorted(families()):
        cls = CONFIG_MAPPING[model_type]
        defaults = {}
        for f in dataclasses.fields(cls):
            if f.name in base and f.name not in ("bos_token_id", "eos_token_id", "pad_token_id"):
                continue
            value = f.default if f.default is not dataclasses.MISSING else f.default_factory()
            if not isinstance(value, property | AttributeError):
                defaults[f.name] = value
        for table in families()[model_type].nested:  # a table of its own class, spread out
            del defaults[table]
            inner = type(getattr(cls(), table))
            defaults.update({f"{table}.{f.name}": f.default for f in dataclasses.fields(inner) if f.name not in base})
        out[model_type] = {"defaults": defaults, "aliases": dict(cls.attribute_map)}
    return {"transformers_version": transformers.__version__, "families": out}


def main() -> None:
    entries = recorded()
    lines = [f'    "{name}": {json.dumps(entry)}' for name, entry in entries["families"].items()]
    body = ",\n".join(lines)
    text = f'{{\n  "transformers_version": "{entries["transformers_version"]}",\n  "families": {{\n{body}\n  }}\n}}\n'
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
