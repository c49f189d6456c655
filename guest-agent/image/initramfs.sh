# The initramfs: the agent as /init, busybox, and the directories that they expect.

published[initramfs]=initramfs.cpio
target=x86_64-unknown-linux-gnu

build_initramfs() {
  need busybox:busybox-static
  command -v cargo >/dev/null || die 'missing cargo; it comes with rustup'
  local agent busybox key compiled
  agent=${TINE_AGENT:-}
  if [[ -z $agent ]]; then
    # One for each checkout: cargo does not see that another one's program lies in its place.
    compiled=$images/agent-target/$(printf %s "$here" | digest)
    compile_agent "$compiled"
    agent=$compiled/$target/agent/tine-agent
  fi
  busybox=$(command -v busybox)
  key=$(cat "$agent" "$busybox" "$here"/{cpio,initramfs}.sh | digest)
  if [[ ! -e $images/initramfs-$key.cpio ]]; then
    ldd "$busybox" >/dev/null 2>&1 && die "$busybox is not static; install it with: apt-get install busybox-static"
    locked initramfs
    write_initramfs "$agent" "$busybox" >"$images/.initramfs-$key.cpio"
    mv "$images/.initramfs-$key.cpio" "$images/initramfs-$key.cpio"
  fi
  publish "initramfs-$key.cpio" initramfs.cpio
}

# Cargo knows best whether there is anything to do. Its own target directory, so that neither the flags
# nor the lock get in the way of other builds.
compile_agent() {
  mkdir -p "$images"
  log=$images/agent.log
  : >"$log"
  watched 'compiling the agent' env CARGO_TARGET_DIR="$1" \
    RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' \
    cargo build --manifest-path "$here/../Cargo.toml" --locked --profile agent --target "$target" \
    -p tine-guest-agent --bin tine-agent
}

# The commands that a caller may name without a root drive. Each link costs the guest some 10,000 instructions at boot,
# so these are not all of busybox's; its shell runs the others without a link.
applets=(
  cat chmod cp date dd df dmesg echo env false free grep head hostname id ip kill ln ls mkdir mount mv nc nproc ping
  poweroff printf ps pwd reboot rm sed seq sh sleep sort sync sysctl tail tar tee test touch true umount uname uniq
  uptime wc wget xargs yes
)

# Parents come before what is in them; the order is fixed.
write_initramfs() {
  local agent=$1 busybox=$2 name
  for name in bin dev etc proc root run sys tmp usr; do
    cpio_dir "$name"
  done
  cpio_link sbin bin
  cpio_link usr/bin ../bin
  cpio_link usr/sbin ../bin
  # What the kernel gives to /init as its standard streams, before anything is mounted.
  cpio_char dev/console 5 1
  cpio_file bin/busybox "$busybox" 755
  for name in "${applets[@]}"; do
    cpio_link "bin/$name" busybox
  done
  cpio_text etc/passwd $'root:x:0:0:root:/root:/bin/sh\n'
  cpio_text etc/group $'root:x:0:\n'
  cpio_text etc/hosts $'127.0.0.1 localhost\n::1 localhost\n'
  cpio_text etc/resolv.conf ''
  cpio_file init "$agent" 755
  cpio_end
}
