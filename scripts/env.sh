# Sourced by the other scripts: make the project's environment once (.venv, with plain python3 and pip) and enter it.
# After a change of pyproject.toml it is brought up to date.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=""
for candidate in python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "error: Python 3.11 or newer is needed; python3 is $(python3 --version 2>&1)" >&2
    exit 2
fi

stamp=.venv/pyproject.sum
sum=$(cksum pyproject.toml)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$sum" ]; then
    echo "making the environment in .venv (once)" >&2
    "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
    echo "$sum" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
