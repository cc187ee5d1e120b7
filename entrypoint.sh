#!/bin/sh
# Starts the driver with the token on a descriptor: in the environment, /proc/PID/environ would show it.
set +x # a trace would print the token

# As PID 1 this shell would ignore SIGTERM. Nothing was pulled yet, so there is nothing to tidy up. Unless whoever starts
# it has blocked the signal, as the image does, a stop is lost to PID 1 in two moments of about a millisecond each: until
# this line, and from the exec until env has blocked it.
trap 'exit 0' TERM INT

unset token # a variable of this name that came with the environment would be exported
if [ -n "${HEPHAESTUS_SANDBOX_TOKEN:-}" ] && [ -z "${HEPHAESTUS_SANDBOX_TOKEN_FILE:-}" ]; then
    token=$HEPHAESTUS_SANDBOX_TOKEN
    unset HEPHAESTUS_SANDBOX_TOKEN
    export HEPHAESTUS_SANDBOX_TOKEN_FILE=/dev/fd/3
fi

set -- "${DRIVER_PYTHON:-python3}" -I -m driver "$@"
unset DRIVER_PYTHON
# PID 1 loses a signal that it has no handler for, unless it is blocked; the driver unblocks it when it has one. Whether
# it is blocked already is asked without a command: to start one, dash unblocks every signal.
held=
while read -r field value; do
    case $field$value in SigBlk:*[4567cdef]???) held=yes ;; esac
done 2>/dev/null </proc/self/status
if [ -z "$held" ] && env --block-signal=TERM true 2>/dev/null; then
    set -- env --block-signal=TERM --block-signal=INT "$@"
fi

# Without a token, or with two, the driver reports that together with every other wrong setting.
[ -n "${token:-}" ] || exec "$@"
exec "$@" 3<<TOKEN
$token
TOKEN
