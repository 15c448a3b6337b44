#!/bin/sh
# Compiles the crates of this workspace for the fuzzers and the sanitizer; `scripts/fuzz.py` sets it as cargo's
# RUSTC_WORKSPACE_WRAPPER. It applies only to our own crates, so the dependencies are those of every other build.
#
# The flags are unstable; RUSTC_BOOTSTRAP makes the stable compiler accept them. It is set here and not for cargo,
# because build scripts of dependencies check it.
case " $* " in
*" --crate-name "*)
    RUSTC_BOOTSTRAP=1 exec "$@" \
        --cfg fuzzing -Zsanitizer=address -Cdebug-assertions=on -Coverflow-checks=on \
        -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*)
    exec "$@"
    ;;
esac
