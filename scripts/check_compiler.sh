#!/bin/sh
# One line when there is no C++ compiler where Inductor looks for one ($CXX, else the default).
case "$(uname -s)" in Darwin) default=clang++ ;; *) default=g++ ;; esac
compiler=${CXX:-$default}
command -v "$compiler" >/dev/null 2>&1 && exit 0
echo "error: Inductor needs a C++ compiler and '$compiler' was not found." \
    "Install one (Debian, Ubuntu: g++), or name it: make CXX=/path/to/c++" >&2
exit 1
