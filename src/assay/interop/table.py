"""What can be read and written, as rows for a table."""

from __future__ import annotations

from assay.interop.config import defaults_version
from assay.interop.errors import shown
from assay.interop.families import PENDING, families
from assay.interop.gguf import ARCHS

COLUMNS = ("family", "architecture", "read", "write", "gguf", "note")


def rows() -> list[dict[str, str]]:
    """One row a family, supported ones first, then those that wait for a kind; values are ready to print."""
    gguf = {arch.model_type: name for name, arch in ARCHS.items()}
    waits: dict[str, list[str]] = {}
    for p in PENDING:
        needs = f"needs {shown(p.missing)}" if p.missing else "kinds are there, no converter yet"
        waits.setdefault(p.model_type, []).append(f"{p.what}: {needs}" if p.what else needs)
    out = []
    for name, family in families().items():
        note = "; ".join(waits.pop(name, []))
        out.append(dict(zip(COLUMNS, (name, family.architecture, "yes", "yes", gguf.get(name, ""), note), strict=True)))
    for name, notes in waits.items():
        out.append(dict(zip(COLUMNS, (name, "", "no", "no", "", "; ".join(notes)), strict=True)))
    return out


def markdown() -> str:
    """The rows as a Markdown table, with the release of transformers whose defaults are recorded."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row[c] for c in COLUMNS) + " |" for row in rows()]
    return "\n".join([f"Defaults of absent keys: transformers {defaults_version()}.", "", *lines]) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
