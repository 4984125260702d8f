#!/bin/sh
# Runs a compiler and fails where ptxas says (C75xx) that it serialised a kernel's wgmma instructions.
out=$("$@" 2>&1)
code=$?
[ -z "$out" ] || printf '%s\n' "$out" >&2
case $out in
  *"(C75"*) exit 1 ;;
esac
exit $code
