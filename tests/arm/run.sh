#!/usr/bin/env bash
# Cross-compiles the extension for Arm and runs the kernel tests on emulated processors, one for each instruction set.
#
# For Debian 12 or later. What is missing of the compiler and the emulator is installed (as root); the Arm Python and its
# packages are only unpacked, into build/arm, by an apt whose whole state lies there too.
set -euo pipefail
cd "$(dirname "$0")/../.."
arm="$PWD/build/arm"
python="$arm/root/usr/bin/emulated-python"
packages="$arm/root/usr/lib/python3/dist-packages"
exactness=tests/engine/test_exactness.py
attention=tests/kernels/test_paged_attention.py
tests=(tests/kernels "$exactness::test_every_format_is_exact_in_itself" "$exactness::test_the_reference_backend_agrees")
# What needs no processor, measures it, or computes too much for an emulator.
left_out=(
  --ignore tests/kernels/test_reference.py
  --deselect tests/kernels/test_machine_probes.py::test_rates_are_those_of_a_processor
  --deselect "$attention::test_chunks_of_a_prompt_give_the_bits_of_the_whole"
  --deselect "$attention::test_bits_do_not_depend_on_placement_neighbours_order_or_threads"
  --deselect "$attention::test_more_segments_than_results_are_kept_of_give_the_same_bits_in_bounded_memory"
)

install_tools() {
  local missing=()
  command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
  command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "the tests on Arm need ${missing[*]}; hint: as root on Debian: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >/dev/null
}

arm_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
    -o Dir::State="$arm/apt" -o Dir::State::status="$arm/apt/status" -o Dir::Cache="$arm/apt" "$@"
}

unpack_python() {
  [ -e "$python" ] && return
  echo "fetching an Arm Python"
  rm -rf "$arm/apt" "$arm/root"
  mkdir -p "$arm/apt/lists/partial" "$arm/apt/archives/partial" "$arm/root"
  touch "$arm/apt/status"
  arm_apt update
  arm_apt -y --no-install-recommends --download-only install python3-minimal libpython3-dev libstdc++6 >/dev/null
  local package
  for package in "$arm"/apt/archives/*.deb; do dpkg-deb --extract "$package" "$arm/root"; done
  rm -r "$arm/apt"
  # pyconfig.h lies in Debian's folder for the processor, which only the system's own include path knows.
  ln -s ../aarch64-linux-gnu "$(echo "$arm"/root/usr/include/python3.*)/aarch64-linux-gnu"
  cat >"$python.new" <<'EOF'
#!/bin/sh
# The Arm Python under the emulator. It takes this file for itself, so that it can start another one like it.
root=$(cd "$(dirname "$0")/../.." && pwd)
exec qemu-aarch64 -L "$root" -0 "$root/usr/bin/emulated-python" "$root/usr/bin/python3" "$@"
EOF
  chmod +x "$python.new"
  mv "$python.new" "$python"  # last: it tells that all is there
}

install_packages() {
  cmp -s requirements/lock.txt "$packages/lock.txt" && return
  echo "fetching the packages for it"
  rm -rf "$packages"
  python3 -m pip install --quiet --disable-pip-version-check --target "$packages" --constraint requirements/lock.txt \
    --python-version "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" --only-binary :all: \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    nanobind numpy gguf psutil pytest pytest-randomly
  cp requirements/lock.txt "$packages/lock.txt"
}

build() {
  echo "building for Arm"
  if [ ! -e "$arm/build/build.ninja" ]; then
    cmake -S . -B "$arm/build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
      -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$python" \
      -DPython_INCLUDE_DIR="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" >"$arm/cmake.log"
  fi
  cmake --build "$arm/build"
}

# Runs the tests on a processor whose best instruction set is the one named.
test_on() {
  local processor=$1 instruction_set=$2 found
  export QEMU_CPU=$processor PYTHONPATH=src:tests
  found=$("$python" -c 'from octavo.kernels.cpu import instruction_sets; print(instruction_sets()[0])')
  if [ "$found" != "$instruction_set" ]; then
    echo "on an emulated $processor the best instruction set is $found, not $instruction_set" >&2
    exit 1
  fi
  echo "testing $instruction_set on an emulated $processor"
  "$python" -m pytest -q -p arm.each_value -p no:cacheprovider "${left_out[@]}" "${tests[@]}" "${@:3}"
}

export PATH="$PWD/.venv/bin:$PATH"
mkdir -p "$arm"
install_tools
unpack_python
install_packages
build
test_on cortex-a72 neon "$@"
test_on max neon_bf16 -k 'neon_bf16 or not neon' "$@"
