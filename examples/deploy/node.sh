#!/usr/bin/env bash
# Makes this machine a part of a RollMux cluster (docs/guides/deploy.md):
#   node.sh head                  the machine that `rollmux run --address` is started on; it is a node of no pool
#   node.sh rollout HEAD[:PORT]   one rollout node
#   node.sh training HEAD[:PORT]  one training node
# Further arguments go to `ray start`, as --block or --port. The token must be in ~/.ray/auth_token, or where RAY_AUTH_TOKEN_PATH
# says, and be the same on all machines; without one Ray refuses to start.
set -euo pipefail

export RAY_AUTH_MODE=token
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 # jobs' processes choose their GPUs themselves
export OMP_NUM_THREADS=1                    # until a process knows its node's cores

ulimit -S -l hard                           # page-locked memory, as much as this user may have

# Ray lets everybody write to its folders and sockets: only this user gets to where they are.
folder=${RAY_TMPDIR:-/tmp}/rollmux-$(id -u)
mkdir -m 700 -p "$folder"
if [[ -L $folder || ! -O $folder ]]; then
    echo "node.sh: $folder is not this user's" >&2
    exit 2
fi
chmod 700 "$folder"

export RAY_memory_monitor_refresh_ms=0 # it ends whom it likes; jobs' processes watch their own memory
role=${1:?head, rollout or training}
case $role in
head)
    shift
    exec ray start --head --port=6379 --num-cpus=0 --temp-dir="$folder/ray" --dashboard-host=127.0.0.1 --disable-usage-stats "$@"
    ;;
rollout | training)
    head=${2:?the address of the head}
    shift 2
    [[ $head == *:* ]] || head=$head:6379
    exec ray start --address="$head" --resources="{\"${role}_node\": 1}" --disable-usage-stats "$@"
    ;;
*)
    echo "node.sh: '$role' is not head, rollout or training" >&2
    exit 2
    ;;
esac
