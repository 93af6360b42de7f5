#!/bin/sh
# Print the path of a Python that can build and run funcaot, or one line that says what is missing.
# $PYTHON, when set, is the only candidate. Inductor compiles against Python.h, so it must be there.

usable() {
    command -v "$1" >/dev/null 2>&1 && "$1" - 2>/dev/null <<'PY'
import os, sys, sysconfig
if not (3, 11) <= sys.version_info < (3, 14):
    sys.exit(10)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(11)
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    sys.exit(12)
print(sys.executable)
PY
}

reason=10
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    usable "$candidate"
    status=$?
    [ "$status" -eq 0 ] && exit 0
    case "$status" in 11 | 12) reason=$status ;; esac
done

wanted="funcaot needs Python 3.11, 3.12 or 3.13"
case "$reason" in
    11) echo "error: $wanted with its venv module; install it (Debian, Ubuntu: python3-venv)." ;;
    12) echo "error: $wanted with its C headers (Python.h); install them (Debian, Ubuntu: python3-dev)." ;;
    *) echo "error: $wanted; found none${PYTHON:+ at PYTHON=$PYTHON}. Install one, or name it: make PYTHON=/path/to/python3.11" ;;
esac >&2
exit 1
