# Shared by `build` and `rootfs`: where results are kept, how progress is told, how a result is published.
# Whatever is in the cache under its final name is complete: work is done under a temporary name and renamed.

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cache=${TINE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tine}
images=$cache/image
log=

say() { printf 'image: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# need TOOL:PACKAGE...: one line names all that is missing and what to install.
need() {
  local pair tools=() packages=()
  for pair in "$@"; do
    local what=${pair%%:*} package=${pair##*:}
    if [[ $what == */* ]]; then [[ -e $what ]]; else command -v "$what" >/dev/null; fi && continue
    tools+=("${what##*/}") packages+=("$package")
  done
  ((${#tools[@]} == 0)) && return
  local list
  printf -v list '%s, ' "${tools[@]}"
  die "missing ${list%, }; install them with: apt-get install $(printf '%s\n' "${packages[@]}" | sort -u | paste -sd' ')"
}

# digest: the name of a result, from its inputs on standard input.
digest() { sha256sum | cut -c1-16; }

# locked NAME: until the script ends, nobody else makes NAME.
locked() {
  mkdir -p "$images"
  exec {lock}>"$images/.$1.lock"
  flock -n "$lock" && return
  say "another build of the $1 is running; waiting for it"
  flock "$lock"
}

# publish FILE NAME: NAME in the image directory becomes a link to FILE, in one step.
publish() {
  [[ $(readlink "$images/$2" || true) == "$1" ]] && return
  ln -s "$1" "$images/.$2.$$"
  mv -T "$images/.$2.$$" "$images/$2"
}

# watched PHASE COMMAND...: runs COMMAND with its output in the log, telling how far it is.
# On a terminal that is one line, rewritten; elsewhere a line every half minute.
watched() {
  local phase=$1 start=$SECONDS told=$SECONDS pid status=0
  shift
  "$@" >>"$log" 2>&1 &
  pid=$!
  [[ -t 2 ]] || say "$phase"
  while kill -0 "$pid" 2>/dev/null; do
    if [[ -t 2 ]]; then
      printf '\r\033[Kimage: %s, %s, %d s' "$phase" "$(progress)" $((SECONDS - start)) >&2
    elif ((SECONDS - told >= 30)); then
      told=$SECONDS
      say "$phase, $(progress), $((SECONDS - start)) s"
    fi
    sleep 0.5
  done
  wait "$pid" || status=$?
  [[ -t 2 ]] && printf '\r\033[K' >&2
  ((status == 0)) && return
  tail -n 5 "$log" >&2
  die "$phase failed; the whole log is in $log"
}

# progress: files compiled so far, or failing that lines of log.
progress() {
  local n
  n=$(grep -cE '^ +(CC|AS|HOSTCC) |^ +Compiling ' "$log" || true)
  if ((n)); then echo "$n files compiled"; else echo "$(wc -l <"$log") lines of log"; fi
}
