"""What lies in a folder, to compare two prepared sets to the byte."""

from pathlib import Path

from medclip_debias.data.secret import FILE


def set_files(folder: Path) -> dict[str, bytes]:
    """Bytes of every file below a folder but the secret, which each set draws for itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != FILE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
