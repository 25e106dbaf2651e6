"""Write the golden files again: ``python -m tests.golden.regen``, then read the diff."""

from __future__ import annotations

from tests.golden.dump import FOLDER, dump, expected, stale


def main() -> None:
    for path, (kind, name) in expected().items():
        text = dump(kind, name)
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            print(f"wrote {path.relative_to(FOLDER)}")
    for path in stale():
        path.unlink()
        print(f"removed {path.relative_to(FOLDER)}")


if __name__ == "__main__":
    main()
