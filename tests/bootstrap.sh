#!/bin/sh
# Make the virtual environment $1 with uv and tox, of bootstrap.txt: all that the Makefile needs before it can ask them for the rest.
set -eu
venv=$1
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "python3: $(python3 --version 2>&1 || echo not found): version 3.11 or newer is needed" >&2
    exit 1
}
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] || { echo "python3 has no venv module: install the package python3-venv" >&2; exit 1; }
    echo "installing the Debian package python3-venv"
    { apt-get -qq update && apt-get -qq install -y python3-venv; } >/dev/null
fi
echo "setting up uv and tox in $venv (seconds)"
python3 -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$(dirname "$0")/bootstrap.txt"
mkdir -p "$venv/tmp"  # TMPDIR of all that the Makefile runs
