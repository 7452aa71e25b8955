#!/usr/bin/env bash
# Tests `runner submit` on a real Slurm: a cluster of two nodes on this machine.
#
#     bash tests/slurm.sh             every check
#     bash tests/slurm.sh CHECK...    selected checks: arrays, cards, lost_node, time_limit
#     bash tests/slurm.sh gate        every check, unless tests/slurm.digest has the digest of what they cover
#
# Needs Debian and root: it installs slurmctld, slurmd, slurm-client and munge if they are missing. All daemons are its own,
# with their own ports and key, and end with it. Accounting and memory limits need a database and control groups: the
# tests of the program replace `sacct` instead (tests/program/submit.rs).
set -euo pipefail
cd "$(dirname "$0")/.."

digest_file=tests/slurm.digest
runner=$PWD/target/release/runner
repository=$PWD

# The digest of what the checks cover.
digest() {
    git ls-files -z -co --exclude-standard -- src/cli/submit src/cli/sweep src/results/store tests/slurm.sh |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

fail() {
    echo "$*" >&2
    tail -n 40 "$folder"/log/* "$folder"/*/results/.slurm/*.log >&2 2>/dev/null || true
    exit 1
}

# await SECONDS WHAT COMMAND...: repeats the command until it succeeds.
await() {
    local end=$((SECONDS + $1)) what=$2
    until "${@:3}" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "timed out after $1 s: $what"
        sleep 0.2
    done
}

install() {
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
    # Packages must start no daemons.
    local policy=/usr/sbin/policy-rc.d own=
    [ -e $policy ] || { own=1 && printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy; }
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq -y install --no-install-recommends slurmctld slurmd slurm-client munge >"$folder/install.log" 2>&1 ||
        { cat "$folder/install.log" >&2 && exit 1; }
    [ -z "$own" ] || rm $policy
}

# Starts munged, slurmctld and the nodes n1 and n2, each with four processors and two files that stand for cards.
up() {
    local host began=$SECONDS
    host=$(hostname -s)
    mkdir -p "$folder"/{state,log,spool,munge}
    chmod 0700 "$folder/munge"
    mungekey --create --keyfile "$folder/munge/key"
    munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" --pid-file="$folder/munge/pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" --num-threads=2 2>"$folder/log/munged"
    # A requeued task waits until its credential has expired.
    cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=5
KillWait=5
InactiveLimit=0
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
END
    for node in n1 n2; do
        for card in 0 1; do mknod "$folder/card.$node.$card" c 1 3; done
        echo "NodeName=$node Name=gpu File=$folder/card.$node.[0-1]"
    done >"$folder/gres.conf"
    slurmctld
    slurmd -N n1
    slurmd -N n2
    await 20 "two idle nodes" idle 2
    echo "the cluster started in $((SECONDS - began)) s"
}

idle() {
    [ "$(sinfo -h -N -t idle -o %N | wc -l)" = "$1" ]
}

# Ends what `up` started, and the jobs.
down() {
    local file end
    scancel -f $(squeue -h -o %A 2>/dev/null) 2>/dev/null || true
    # The steps of a node whose daemon was killed.
    for file in $(grep -lzs "SLURM_CONF=$folder/slurm.conf" /proc/[0-9]*/environ | cut -d/ -f3); do
        [ "$file" = $$ ] || case $(cat /proc/"$file"/comm 2>/dev/null) in
        slurmstepd | runner | slurm_script) kill -9 "$file" 2>/dev/null || true ;;
        esac
    done
    for file in "$folder"/slurmd.*.pid "$folder"/slurmctld.pid "$folder"/munge/pid; do
        [ -e "$file" ] || continue
        kill "$(cat "$file")" 2>/dev/null || true
        end=$((SECONDS + 10))
        while [ -e "$file" ] && ((SECONDS < end)); do sleep 0.1; done
    done
    rm -rf "$folder"
}

# The ids of processes of a node's tasks: of `runner sweep` and its children.
of_node() {
    local process
    for process in $(grep -lzs "^SLURMD_NODENAME=$1$" /proc/[0-9]*/environ | cut -d/ -f3); do
        [ "$(cat /proc/"$process"/comm 2>/dev/null)" = runner ] && echo "$process"
    done
    true
}

runs_on() {
    [ -n "$(of_node "$1")" ]
}

ended() {
    [ -z "$(squeue -h -o %A)" ]
}

results() {
    find "$1" -name result.json | wc -l
}

# The columns of a table that do not depend on time, sorted.
reproducible() {
    python3 - "$1" <<'END'
import csv, sys
rows = csv.DictReader(open(sys.argv[1]))
columns = ["run_id", "strategy", "train.batch_size", "repeat", "status", "predicted_peak_bytes", "peak_bytes",
           "reserved_peak_bytes", "recompute_flops", "loss_first", "loss_last", "loss_eval", "digest"]
print("\n".join(sorted(",".join(row[column] for column in columns) for row in rows)))
END
}

# A node is lost in the middle of its task, which continues unseen beside the requeued one. The table equals a single machine's.
lost_node() {
    local quickstart=$repository/experiments/quickstart.toml
    mkdir "$folder/lost" && cd "$folder/lost"
    "$runner" sweep "$quickstart" --repeats 2 --device cpu --out single --quiet >/dev/null 2>&1
    # Two tasks on each node.
    "$runner" submit "$quickstart" --repeats 2 --device cpu --tasks 4 --time 10m
    await 60 "a task on n2" runs_on n2
    local stale
    stale=$(of_node n2)
    kill -STOP $stale
    kill -9 "$(cat "$folder/slurmd.n2.pid")"
    rm "$folder/slurmd.n2.pid"
    await 90 "n2 is down" eval '[ "$(sinfo -h -N -n n2 -o %t | tr -d "*")" = down ]'
    await 90 "a requeued task on n1" eval 'scontrol -o show jobs | grep -q "JobState=RUNNING.* Restarts=[1-9]"'
    kill -CONT $stale 2>/dev/null || true
    await 180 "the jobs end" ended
    await 60 "the tasks of the lost node end" eval '! runs_on n2'
    diff <(reproducible single/quickstart.csv) <(reproducible results/quickstart.csv) ||
        fail "the cluster's table differs from the single machine's"
    [ "$(results results)" = 24 ] || fail "$(results results) results instead of 24"
    [ -z "$(find results/quickstart -name '.?*-*')" ] || fail "private folders remain"
    grep -q '^batch 12' results/.slurm/quickstart-[0-9]*[0-9].log || fail "the last job printed no table"
    [ "$("$runner" submit "$quickstart" --repeats 2 --device cpu)" = \
        "every run has a result: there is nothing to submit" ] || fail "runs are still missing"
    slurmd -N n2
    await 30 "n2 returns" idle 2
    cd "$repository"
}

# The signal of the time limit ends a task between runs; the next submission requests more.
time_limit() {
    mkdir "$folder/limit" && cd "$folder/limit"
    sed -e "s|\"base/|\"$repository/experiments/base/|" -e 's|^steps = .*|steps = 100000|' -e 's|^name = .*|name = "long"|' \
        "$repository/experiments/quickstart.toml" >long.toml
    local out="o'neil \"1\" #2" comment='two "words" \ #3'
    local submit=("$runner" submit long.toml --repeats 1 --device cpu --filter plain --filter batch_size=4 --out "$out")
    "${submit[@]}" --time 6m --signal USR2@340 -- "--comment=$comment" 2>warning || fail "$(cat warning)"
    grep -q "may come 400 s before the limit of 6 min" warning || fail "no warning: $(cat warning)"
    scontrol -o show jobs | grep -qF "Comment=$comment " || fail "no comment: $(scontrol -o show jobs)"
    "${submit[@]}" >/dev/null 2>queued && fail "submitted twice"
    grep -q "queued or run: " queued || fail "$(cat queued)"
    await 60 "a running task" eval 'runs_on n1 || runs_on n2'
    await 60 "a task of its own end" eval 'grep -q "ended by the signal" "$out"/long.csv'
    [ -n "$(find "$out/.slurm" -name 'long-*_*.log')" ] || fail "no log"
    scancel $(squeue -h -o %A) && await 30 "no jobs" ended
    "${submit[@]}" --dry-run >script 2>said || fail "$(cat said)"
    grep -q 'had too little time: now its runs get at least 12 min' said || fail "$(cat said)"
    # No run has measured rates: the time is not estimated.
    [ "$(grep -c '^#SBATCH --time=0:12:00$' script)" = 2 ] || fail "$(cat script)"
    cd "$repository"
}

# A task computes its part from the variables of its array, and refuses an array with gaps.
arrays() {
    local tasks
    for tasks in 4-8:2 9 1,7; do
        sbatch --wait --array=$tasks --output="$folder/task.%a" <<END >/dev/null || [ $tasks = 1,7 ]
#!/bin/bash
exec "$runner" sweep "$repository/experiments/quickstart.toml" --device cpu --only auto --dry-run
END
    done
    [ "$(cat "$folder"/task.[4689] | grep -o ', part [^)]*' | tr -d '\n')" = \
        ', part 1/3, part 2/3, part 3/3, part 1/1' ] || fail "$(cat "$folder"/task.*)"
    [ "$(grep -l "without gaps, or write auto/TASKS" "$folder"/task.[17] | wc -l)" = 2 ] || fail "$(cat "$folder"/task.*)"
}

# A task sees the cards that it requests.
cards() {
    for cards in 1 2; do
        sbatch --wait --output="$folder/cards.$cards" <<END >/dev/null
#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=2
#SBATCH --gpus-per-task=$cards
echo "\$CUDA_VISIBLE_DEVICES"
END
        [ "$(tr -cd , <"$folder/cards.$cards" | wc -c)" = $((cards - 1)) ] && grep -q '[0-9]' "$folder/cards.$cards" ||
            fail "a task with $cards cards saw: $(cat "$folder/cards.$cards")"
    done
}

checks=("${@:-gate}")
if [ "${checks[*]}" = gate ]; then
    if [ $# = 1 ] && [ "$(digest)" = "$(cat "$digest_file" 2>/dev/null)" ]; then
        echo "what the checks cover matches $digest_file"
        exit
    fi
    checks=(arrays cards lost_node time_limit)
fi
for check in "${checks[@]}"; do
    if [[ " arrays cards lost_node time_limit " != *" $check "* ]]; then
        echo "unknown check $check; use arrays, cards, lost_node, time_limit or gate" >&2
        exit 2
    fi
done
[ "$(id -u)" = 0 ] || { echo "tests/slurm.sh needs root to start nodes" >&2 && exit 1; }
cargo build --quiet --release
current=$(digest)
folder=$(mktemp -d)
export SLURM_CONF=$folder/slurm.conf
unset SLURM_ARRAY_TASK_ID
trap down EXIT
install
up
for check in "${checks[@]}"; do
    began=$SECONDS
    $check
    echo "== slurm $check: $((SECONDS - began)) s"
done
if [ ${#checks[@]} = 4 ] && [ "$current" != "$(cat "$digest_file" 2>/dev/null)" ]; then
    echo "$current" >"$digest_file"
    echo "commit $digest_file: the digest of what the checks cover"
fi
