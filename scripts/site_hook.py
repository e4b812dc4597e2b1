"""Hook of mkdocs.yml: the tracked files where they lie, and the keys of recipe.train as a page."""

import os
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Replace the files of docs_dir by those of the repository; links to code keep working."""
    root = Path(config.config_file_path).parent

    def output(*command: str) -> str:
        return subprocess.check_output(command, cwd=root, text=True)

    python = f"{os.environ.get('RECIPE_VENV', '.venv')}/bin/python"
    keys = output(python, "-m", "recipe.train", "--keys")
    page = f"# Keys\n\n`python -m recipe.train --keys`:\n\n```yaml\n{keys}```\n"
    places = (str(root), config.site_dir, config.use_directory_urls)
    tracked = [name for name in output("git", "ls-files").splitlines() if (root / name).is_file()]
    theme = [file for file in files if file.src_dir != config.docs_dir]
    made = File.generated(config, "keys.md", content=page)
    return Files([*theme, made, *(File(name, *places) for name in tracked)])
