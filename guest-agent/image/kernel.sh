# The guest kernel: Debian's source, our fragment over `tinyconfig`, our patches.

kernel_package=linux-source-6.1
kernel_tarball=/usr/src/$kernel_package.tar.xz
published[kernel]=vmlinux

build_kernel() {
  need gcc:gcc "$kernel_tarball:$kernel_package"
  local key
  key=$({
    dpkg-query -W "$kernel_package"
    gcc --version
    cat "$here"/kernel.{config,sh} "$here"/patches/*.patch
  } | digest)
  if [[ ! -e $images/vmlinux-$key ]]; then
    need make:make flex:flex bison:bison bc:bc ld:binutils patch:patch xz:xz-utils \
      /usr/include/libelf.h:libelf-dev /usr/include/stdio.h:libc6-dev
    locked kernel
  fi
  # Whoever held the lock may have built it.
  [[ -e $images/vmlinux-$key ]] || compile_kernel "$key"
  publish "vmlinux-$key" vmlinux
}

compile_kernel() {
  local key=$1
  log=$images/kernel-$key.log
  tree=$images/.kernel-$key
  : >"$log"
  rm -rf "$tree" && mkdir "$tree"
  trap 'rm -rf "$tree"' EXIT
  watched 'unpacking the kernel source' tar -C "$tree" --strip-components=1 -xf "$kernel_tarball"
  watched 'preparing the kernel source' prepare_kernel
  watched 'compiling the kernel' kernel_make -j"$(nproc)" vmlinux
  # The PVH note is a loaded section: it stays.
  strip -o "$images/.vmlinux-$key" "$tree/vmlinux"
  chmod 644 "$images/.vmlinux-$key"
  mv "$images/.vmlinux-$key" "$images/vmlinux-$key"
  rm -rf "$tree"
  trap - EXIT
  say "the kernel is built"
}

# Fixed names and times: the same inputs give the same kernel.
# Left to itself the compiler expands memcpy and memset in boot code to instructions that work by the byte.
kernel_make() {
  make -C "$tree" ARCH=x86_64 KCFLAGS=-mstringop-strategy=libcall KBUILD_BUILD_USER=tine KBUILD_BUILD_HOST=tine \
    KBUILD_BUILD_TIMESTAMP='1970-01-01 00:00:00 UTC' KBUILD_BUILD_VERSION=1 "$@"
}

prepare_kernel() (
  set -e
  for patch in "$here"/patches/*.patch; do
    patch -d "$tree" -p1 --no-backup-if-mismatch <"$patch"
  done
  kernel_make tinyconfig
  cd "$tree"
  scripts/kconfig/merge_config.sh -m .config "$here/kernel.config"
  kernel_make olddefconfig
  check_config
)

# Kconfig drops what it cannot honour without a word; a guest would miss it much later.
check_config() {
  local line name wrong=0
  while read -r line; do
    case $line in
      CONFIG_*) grep -qxF "$line" .config && continue ;;
      '# CONFIG_'*' is not set')
        name=${line#\# } name=${name% is not set}
        grep -q "^$name=" .config || continue
        ;;
      *) continue ;;
    esac
    echo "kernel.config: not honoured: $line"
    wrong=1
  done <"$here/kernel.config"
  return "$wrong"
}
