#!/usr/bin/env bash
# Opens the page of `runner report` in headless Chromium: desktop and phone width, light and dark. Pictures of it go to
# target/report; `bash tests/report.sh pictures` also renews those in docs.
#
# It needs node, npm and Chromium (CHROMIUM overrides it). As root on Debian it installs a missing Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=target/report
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [[ -z $browser ]] && command -v apt-get >/dev/null && ((EUID == 0)); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    browser=$(command -v chromium || true)
fi
if [[ -z $browser ]]; then
    echo "there is no Chromium: install it, or set CHROMIUM to its path" >&2
    exit 1
fi
mkdir -p "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" puppeteer-core@25.16.0 axe-core@4.14.1
cargo build --release
runner=$PWD/target/release/runner

# A sweep with hostile names; tables without folders; a large table.
rm -rf "$folder/results"
cat >"$folder/hostile.toml" <<'END'
extends = "../../experiments/quickstart.toml"
name = "<b>quickstart"
[measure]
repeats = 1
steps = 2
[strategies."<img src=x onerror=alert(1)>"]
accumulate = 2
END
"$runner" sweep "$folder/hostile.toml" --memory 56MiB --out "$folder/results" --quiet >/dev/null
{
    echo strategy,peak_bytes,tokens_per_s
    seq 10000 | awk '{ print "s" $1 "," 1000000 + $1 * 7919 % 10007 "," 1000 + $1 * 104729 % 10009 }'
} >"$folder/large.csv"
"$runner" report "$folder"/results/*.csv -o "$folder/swept.html"
"$runner" report results/published/xeon-2-cores/quickstart.csv results/published/h100-80gb/gpt2-124m.csv \
    -o "$folder/published.html"
"$runner" report results/published/xeon-2-cores/quickstart.csv -o "$folder/quickstart.html"
"$runner" report "$folder/large.csv" -o "$folder/large.html"
cp tests/report.mjs "$folder/"
CHROMIUM=$browser PICTURES=$([[ ${1:-} == pictures ]] && echo "$PWD/docs" || echo "$PWD/$folder") \
    node --test "$folder/report.mjs"
