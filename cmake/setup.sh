#!/usr/bin/env bash
# Installs what axial needs and the machine lacks:
#   - Debian/Ubuntu packages: installed when root, otherwise listed in one line to paste;
#   - libtorch: an existing one is taken (LIBTORCH, Torch_DIR, CMAKE_PREFIX_PATH); otherwise the pinned
#     wheel is fetched once into ${XDG_CACHE_HOME:-~/.cache}/axial, with the CUDA libraries that libtorch
#     needs and the machine lacks. Python is a download tool here and nothing else.
# Does nothing, quickly, when everything is there.
set -euo pipefail

version=2.11.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/axial
root=$cache/libtorch-$version

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- packages -----------------------------------------------------------------------------------------
packages=(cmake ninja-build g++ make libyaml-cpp-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libhwy-dev
  libpng-dev libjpeg-dev zlib1g-dev libgtest-dev ccache dataset-fashion-mnist)

existing_libtorch() {
  local base
  for base in "${LIBTORCH:-}" "${Torch_DIR:+$Torch_DIR/../../..}" ${CMAKE_PREFIX_PATH//:/ }; do
    [ -n "$base" ] || continue
    for dir in "$base" "$base/torch" "$base/../.."; do
      if [ -f "$dir/lib/libtorch_cpu.so" ] && [ -d "$dir/include/torch/csrc/api" ]; then printf '%s' "$dir"; return 0; fi
    done
  done
  return 1
}

CMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH:-}
if [ -n "${LIBTORCH:-}" ] && ! existing_libtorch >/dev/null; then
  die "LIBTORCH=$LIBTORCH holds no libtorch (expected lib/libtorch_cpu.so and include/torch/csrc/api)"
fi
if libtorch=$(existing_libtorch); then
  fetch=no
else
  fetch=yes
  packages+=(python3 python3-pip unzip)
fi

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    # libjpeg-dev and others are also provided under other names; a tool on PATH counts as installed
    case $package in
      cmake|make|unzip|ccache|python3) command -v "$package" >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      g++) command -v c++ >/dev/null && continue ;;
      python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    esac
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ]; then
      say "installing ${missing[*]}"
      export DEBIAN_FRONTEND=noninteractive
      log=$(mktemp)
      { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; rm -f "$log"; die "apt-get could not install: ${missing[*]}"; }
      rm -f "$log"
    else
      die "packages are missing; run: sudo apt-get install -y ${missing[*]}"
    fi
  fi
else
  say "no dpkg here; the packages must be installed by hand: ${packages[*]}"
fi

# --- libtorch -----------------------------------------------------------------------------------------
if [ $fetch = no ]; then
  say "using libtorch in $libtorch"
  exit 0
fi

# wheel NAME==VERSION FOLDER...: fetches a wheel and unpacks those folders of it under $root
wheel() {
  local spec=$1; shift
  local tmp; tmp=$(mktemp -d "$cache/download.XXXXXX")
  say "fetching $spec"
  # The libraries do not depend on Python's version; the wheel's tag does, so one is named.
  # pip matches the glibc in a platform tag exactly, so every one up to torch's own is named.
  local platforms=(--platform manylinux2014_x86_64) glibc
  for glibc in $(seq 17 28); do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --implementation cp "${platforms[@]}" -d "$tmp" "$spec" ||
    { rm -rf "$tmp"; die "pip could not download $spec"; }
  unzip -q -o "$tmp"/*.whl "$@" -d "$tmp/unpacked" || { rm -rf "$tmp"; die "the wheel of $spec could not be unpacked in $cache"; }
  mkdir -p "$root"
  # Links first: an interrupted set-up leaves whole files or none, never a part that looks like a library.
  cp -alf "$tmp/unpacked/." "$root/" 2>/dev/null || cp -a "$tmp/unpacked/." "$root/" ||
    { rm -rf "$tmp"; die "$spec could not be copied to $root"; }
  rm -rf "$tmp"
}

mkdir -p "$cache" || die "$cache cannot be made"
exec 9>"$cache/.lock"  # two set-ups at once: the second waits for the first
flock 9
if [ ! -f "$root/.complete-torch" ]; then
  [ "$(uname -m)" = x86_64 ] || die "there is no pinned libtorch for $(uname -m); install one and set LIBTORCH"
  wheel "torch==$version" 'torch/lib/*' 'torch/include/*' 'torch/share/*'
  touch "$root/.complete-torch"
fi

# What libtorch's libraries need: file, PyPI package, version that torch 2.11.0's metadata names. The CPU
# libraries need the first two; the CUDA ones, which are used with a toolkit alone, need the rest.
needs_cpu='libcudart.so.13 nvidia-cuda-runtime 13.0.96
libcupti.so.13 nvidia-cuda-cupti 13.0.85'
needs_cuda='libcublas.so.13 nvidia-cublas 13.1.0.3
libcufft.so.12 nvidia-cufft 12.0.0.61
libcufile.so.0 nvidia-cufile 1.15.1.6
libcurand.so.10 nvidia-curand 10.4.0.35
libcusolver.so.12 nvidia-cusolver 12.0.4.66
libcusparse.so.12 nvidia-cusparse 12.6.3.3
libcusparseLt.so.0 nvidia-cusparselt-cu13 0.8.0
libcudnn.so.9 nvidia-cudnn-cu13 9.19.0.56
libnccl.so.2 nvidia-nccl-cu13 2.28.9
libnvshmem_host.so.3 nvidia-nvshmem-cu13 3.4.5
libnvJitLink.so.13 nvidia-nvjitlink 13.0.88
libnvrtc.so.13 nvidia-cuda-nvrtc 13.0.88'

toolkit=
if nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null); then
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
fi
present() {  # is a library file found beside libtorch or in the toolkit? These are the places of the program's RPATH.
  local found
  for found in "$root"/nvidia/*/lib/"$1" /usr/local/cuda/lib64/"$1" ${toolkit:+"$toolkit/lib64/$1" "$toolkit"/targets/*/lib/"$1"}; do
    [ -e "$found" ] && return 0
  done
  ldconfig -p 2>/dev/null | grep -q "[[:space:]]$1 "
}
needs=$needs_cpu
[ -n "$toolkit" ] && needs+=$'\n'$needs_cuda
while read -r file package package_version; do
  present "$file" || wheel "$package==$package_version" 'nvidia/*'
done <<<"$needs"
say "libtorch $version in $root/torch"
