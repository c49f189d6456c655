# Writes a cpio archive ("newc", what the kernel unpacks) to standard output.
# Done here, not by cpio(1): device nodes without root, and every number in it is ours, so the same
# tree gives the same bytes.

declare -i cpio_ino=0

# cpio_entry MODE NAME [DATA-SIZE [MAJOR MINOR]]: a header; the data follow.
cpio_entry() {
  local mode=$1 name=$2 size=${3:-0} major=${4:-0} minor=${5:-0}
  # magic, then inode, mode, uid, gid, links, mtime, size, device, node's device, length of name, no checksum
  printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X' \
    $((++cpio_ino)) "$mode" 0 0 1 0 "$size" 0 0 "$major" "$minor" $((${#name} + 1)) 0
  printf '%s\0' "$name"
  cpio_pad $((110 + ${#name} + 1))
}

# cpio_pad LENGTH: fills up to a multiple of four.
cpio_pad() { head -c $((-$1 & 3)) /dev/zero; }

cpio_dir() { cpio_entry $((0040755)) "$1"; }

cpio_char() { cpio_entry $((0020600)) "$1" 0 "$2" "$3"; }

# cpio_file NAME SOURCE [PERMISSIONS]
cpio_file() {
  local size
  size=$(stat -Lc %s "$2")
  cpio_entry $((0100000 | 0${3:-644})) "$1" "$size"
  cat "$2"
  cpio_pad "$size"
}

# cpio_text NAME TEXT: a small file.
cpio_text() {
  cpio_entry $((0100644)) "$1" ${#2}
  printf %s "$2"
  cpio_pad ${#2}
}

# cpio_link NAME TARGET
cpio_link() {
  cpio_entry $((0120777)) "$1" ${#2}
  printf %s "$2"
  cpio_pad ${#2}
}

cpio_end() { cpio_entry 0 'TRAILER!!!'; }
