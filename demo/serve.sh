#!/usr/bin/env bash
# Serves the demo checkpoint and prints, once it answers, what to type next. Usage: demo/serve.sh CHECKPOINT
set -euo pipefail
checkpoint=$1
port=${PORT:-8000}
# vLLM's start-up check reads the size of one NUMA node, which containers often report wrongly; a small cache is enough.
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}

vllm serve "$checkpoint" --served-model-name smollm2-mxfp4 --max-model-len 2048 --host 127.0.0.1 --port "$port" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null' EXIT INT TERM

until python - "$port" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=2)
except OSError:
    sys.exit(1)
PY
do
  kill -0 "$server" 2>/dev/null || { wait "$server"; exit $?; }
  sleep 1
done

cat <<TRY

The server answers. In another terminal:

  curl http://127.0.0.1:$port/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2-mxfp4", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}'

Ctrl-C stops it.

TRY
wait "$server"
