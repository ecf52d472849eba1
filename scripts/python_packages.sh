#!/usr/bin/env bash
# Puts the Python packages that a list names into a folder, once:
# `python_packages.sh requirements.txt FOLDER`. Who wants them sets PYTHONPATH to the folder.
set -euo pipefail
requirements=$1
folder=$2

wanted="$(python3 --version) $(sha256sum <"$requirements")"
[ "$(cat "$folder/.installed" 2>/dev/null)" != "$wanted" ] || exit 0

mkdir -p "$(dirname "$folder")"
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
pip=(python3 -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
  python3 -m venv "$scratch/venv"
  pip=("$scratch/venv/bin/python" -m pip)
fi
"${pip[@]}" install --quiet --disable-pip-version-check --no-input --only-binary=:all: \
  --target "$scratch/packages" --requirement "$requirements" </dev/null
echo "$wanted" >"$scratch/packages/.installed"
rm -rf "$folder"
mv "$scratch/packages" "$folder"
