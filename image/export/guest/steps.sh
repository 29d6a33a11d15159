# Shell functions for the inits of both guests: one result line per step, on the console.
#
# Why here: image/export/guest/run reads these lines, and both guests must speak alike.
# Must stay true: plain POSIX shell that busybox's ash runs; a step that fails says why and ends the
# guest's run.

# Hundredths of a second since the guest's start.
now() {
  read -r up _ </proc/uptime
  echo "${up%.*}${up#*.}"
}

# result NAME BEGUN: says that a step went well and how long it took. By a process of its own: the
# end of a server that init has inherited interrupts the shell's own write to a console, and the
# line is lost.
result() {
  spent=$(($(now) - $2))
  printf 'guest: %s ok %d.%02d\n' "$1" $((spent / 100)) $((spent % 100)) >/run/result
  cat /run/result
}

# step NAME COMMAND...: runs a command (or function), says how it went, and ends the guest if it
# failed.
step() {
  name=$1
  shift
  begun=$(now)
  if "$@" >/run/step.log 2>&1; then
    result "$name" "$begun"
  else
    echo "guest: $name FAILED with status $?: $*"
    sed 's/^/  | /' /run/step.log
    dmesg | tail -n 20 | sed 's/^/  kernel | /'
    finish
  fi
}

# same_bytes DEVICE IMAGE: the device reads as the image that was packed; its last sector may be
# filled up.
same_bytes() {
  forget
  cmp -n "$image_bytes" "$1" "$2"
}

# What the page cache holds of the device is forgotten, so that the next read reaches the server.
forget() { echo 3 >/proc/sys/vm/drop_caches; }
