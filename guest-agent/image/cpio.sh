# Writes a cpio archive ("newc", what the kernel unpacks) to standard output.
# Done here, not by cpio(1): device nodes without root, every number in it is ours, so the same tree gives
# the same bytes, and the data of large files start at page boundaries.

page=4096
declare -i cpio_ino=0 cpio_at=0

# cpio_entry MODE NAME [DATA-SIZE [MAJOR MINOR]]: a header; the data follow.
# Our kernel takes whole pages of a file out of the archive as they are, if they are aligned there. The gap is filled
# with more of the NUL that ends the name, as far as a name may be long, and before that with NULs between entries.
cpio_entry() {
  local mode=$1 name=$2 size=${3:-0} major=${4:-0} minor=${5:-0}
  local -i named=${#2}+1 gap
  if ((size >= page)); then
    gap=$((-(cpio_at + 110 + named) & page - 1))
    if ((named + gap > page)); then
      cpio_nul $((named + gap - page + 3 & ~3))
      gap=$((-(cpio_at + 110 + named) & page - 1))
    fi
    named+=gap
  fi
  # magic, then inode, mode, uid, gid, links, mtime, size, device, node's device, length of name, no checksum
  printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s' \
    $((++cpio_ino)) "$mode" 0 0 1 0 "$size" 0 0 "$major" "$minor" "$named" 0 "$name"
  cpio_at+=110+${#name}
  cpio_nul $((named - ${#name}))
  cpio_align
}

cpio_nul() {
  head -c "$1" /dev/zero
  cpio_at+=$1
}

# Headers and data start at multiples of four.
cpio_align() { cpio_nul $((-cpio_at & 3)); }

# cpio_data SIZE: from standard input.
cpio_data() {
  cat
  cpio_at+=$1
  cpio_align
}

cpio_dir() { cpio_entry $((0040755)) "$1"; }

cpio_char() { cpio_entry $((0020600)) "$1" 0 "$2" "$3"; }

# cpio_file NAME SOURCE [PERMISSIONS]
cpio_file() {
  local size
  size=$(stat -Lc %s "$2")
  cpio_entry $((0100000 | 0${3:-644})) "$1" "$size"
  cpio_data "$size" <"$2"
}

# cpio_text NAME TEXT: a small file.
cpio_text() {
  cpio_entry $((0100644)) "$1" ${#2}
  cpio_data ${#2} < <(printf %s "$2")
}

# cpio_link NAME TARGET
cpio_link() {
  cpio_entry $((0120777)) "$1" ${#2}
  cpio_data ${#2} < <(printf %s "$2")
}

cpio_end() { cpio_entry 0 'TRAILER!!!'; }
