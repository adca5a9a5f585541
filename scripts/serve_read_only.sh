#!/usr/bin/env bash
# Usage, as root: unshare --mount bash scripts/serve_read_only.sh ENGINE WHEEL
#
# What an image of deploy/Dockerfile does and serves, without a builder: ENGINE, an environment with
# vLLM (its files are copied), WHEEL, one of vllm-overlay.  The patches go on as root; then all is
# read-only but a /tmp of memory, and user 1000 asks the probes and imports the patched vLLM.
set -euo pipefail
engine=$1 wheel=$2
packages=$("$engine/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
interpreter=$("$engine/bin/python" -c "import sys; print(sys.base_prefix)")
mount --make-rprivate /
mount -t tmpfs -o size=2g,mode=755 tmpfs /mnt
mkdir /mnt/interpreter
mount --bind "$interpreter" /mnt/interpreter
"$engine/bin/python" -m venv --symlinks /mnt/venv
site=$(/mnt/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
cp -a "$packages"/vllm "$packages"/vllm*.dist-info "$site/"
echo "$packages" >"$site/zz-engine.pth"
/mnt/venv/bin/python -m pip install -q --no-deps --no-index --ignore-installed "$wheel"
export PATH=/mnt/venv/bin:$PATH
# ENV and RUN of the Dockerfile.
export VLLM_USE_V2_MODEL_RUNNER=0
overlay apply --require draft-graphs | tail -n 1
export OVERLAY=disk HOME=/tmp/home USER=vllm XDG_CACHE_HOME=/tmp/home/.cache
export XDG_CONFIG_HOME=/tmp/home/.config VLLM_CACHE_ROOT=/tmp/vllm TRITON_CACHE_DIR=/tmp/triton
export FLASHINFER_WORKSPACE_BASE=/tmp/flashinfer TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
unset TMPDIR OVERLAY_CACHE
home=~root
if [ "${interpreter#"$home"/}" != "$interpreter" ]; then
    # A user who is not root reaches nothing below root's home.
    mount -t tmpfs -o mode=755 tmpfs "$home"
    mkdir -p "$interpreter"
    mount --bind /mnt/interpreter "$interpreter"
    mount -o remount,bind,ro "$home"
fi
mount -t tmpfs -o exec,mode=1777 tmpfs /tmp
mount -o remount,bind,ro /mnt
mount -o remount,bind,ro /
exec setpriv --reuid 1000 --regid 0 --clear-groups --no-new-privs --bounding-set -all \
    bash -c 'set -e; id -u; ! touch /file /mnt/file 2>/dev/null
overlay status --require draft-graphs | tail -n 1
! overlay status --live --require draft-graphs || exit 1
python -c "import vllm.v1.worker.gpu_model_runner as runner; print(runner.__file__)"
echo served from a read-only root'
