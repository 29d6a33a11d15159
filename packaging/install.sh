#!/bin/sh
# Installs Sidecore's static program: downloads the release of this machine's architecture, checks its SHA-256, unpacks it.
#
#   curl -fsSL https://github.com/sidecore/sidecore/releases/latest/download/install.sh | sh
#   install.sh [--version X.Y.Z] [--prefix DIR] [--from URL|DIR] [--uninstall]
#
# --version X.Y.Z   this release instead of the newest one
# --prefix DIR      where bin/, lib/ and share/ go: /usr/local for root, else ~/.local
# --from URL|DIR    a folder that holds SHA256SUMS and the archives: a mirror, or files that are already here
# --uninstall       removes what an earlier run installed below the prefix
#
# Needs sh, tar, gzip, sha256sum (or shasum), and curl or wget for URLs. It asks for no root and changes no file outside of the prefix.
# Must stay true: nothing is unpacked before its checksum is found right; a run that fails leaves the installed version as it was.
set -eu

releases=https://github.com/sidecore/sidecore/releases

say() { printf 'install: %s\n' "$*"; }
fail() {
  printf 'install: %s\n' "$*" >&2
  exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

usage() {
  cat <<'END'
usage: install.sh [--version X.Y.Z] [--prefix DIR] [--from URL|DIR] [--uninstall]
  --version X.Y.Z   this release instead of the newest one
  --prefix DIR      where bin/, lib/ and share/ go: /usr/local for root, else ~/.local
  --from URL|DIR    a folder that holds SHA256SUMS and the archives
  --uninstall       removes what an earlier run installed below the prefix
END
}

# fetch FROM TO: a file of a server or of this machine.
fetch() {
  case $1 in
    http://* | https://*)
      if has curl; then
        curl -fsSL --retry 3 -o "$2" "$1"
      elif has wget; then
        wget -q -O "$2" "$1"
      else
        fail "neither curl nor wget is installed; install one, or download the release and give its folder with --from DIR"
      fi
      ;;
    file://*) cp "${1#file://}" "$2" ;;
    *://*) fail "$1 is neither http://, https:// nor file://" ;;
    *) cp "$1" "$2" ;;
  esac
}

sha256() {
  if has sha256sum; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif has shasum; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  else
    fail "neither sha256sum nor shasum is installed: the download cannot be checked"
  fi
}

architecture() {
  [ "$(uname -s)" = Linux ] || fail "Sidecore runs on Linux; this is $(uname -s)"
  case $(uname -m) in
    x86_64 | amd64) echo x86_64 ;;
    aarch64 | arm64) echo aarch64 ;;
    *) fail "there is no release for $(uname -m); \`cargo install --locked sidecore-cli\` builds one" ;;
  esac
}

# Removes the files that the list of an earlier version has, and its folders (which end in a slash).
remove() { # PREFIX LIST
  # Backwards: a folder comes after what is in it.
  sort -r "$2" | while IFS= read -r path; do
    # A list that was changed must not lead out of the prefix.
    case $path in
      '' | /* | ../* | */../* | */..) ;;
      # Folders that others use, too, stay: rmdir refuses them.
      */) rmdir "$1/$path" 2>/dev/null || : ;;
      *) rm -f "$1/$path" ;;
    esac
  done
}

# Makes a folder, and notes each that was not there: only those go again.
make_folder() { # PREFIX FOLDER
  [ ! -d "$1/$2" ] || return 0
  case $2 in
    */*) make_folder "$1" "${2%/*}" || return 1 ;;
  esac
  mkdir "$1/$2" && echo "$2/" >>"$work/folders"
}

uninstall() { # PREFIX
  list=$1/share/sidecore/installed
  [ -f "$list" ] || fail "nothing is installed below $1: $list is missing"
  cp "$list" "$work/old"
  remove "$1" "$work/old"
  # The list is the last file that goes; then its folder is empty.
  rm -f "$list"
  remove "$1" "$work/old"
  say "removed from $1"
}

# The archive's name for this machine, as the list of checksums has it.
archive_of() { # SUMS ARCHITECTURE VERSION
  sed -n 's/^[0-9a-f]\{64\} [ *]//p' "$1" | grep -x "sidecore-$3-$2-unknown-linux-musl\.tar\.gz" | tail -n 1
}

install() { # PREFIX FROM VERSION
  fetch "$2/SHA256SUMS" "$work/SHA256SUMS" || fail "cannot fetch $2/SHA256SUMS"
  machine=$(architecture)
  wanted='[0-9][0-9A-Za-z.+-]*'
  [ -z "$3" ] || wanted=$(printf %s "$3" | sed 's/\./\\./g')
  archive=$(archive_of "$work/SHA256SUMS" "$machine" "$wanted")
  [ -n "$archive" ] || fail "$2/SHA256SUMS names no archive for $machine${3:+ of version $3}"
  name=${archive%.tar.gz}
  say "fetching $archive"
  fetch "$2/$archive" "$work/$archive" || fail "cannot fetch $2/$archive"
  expected=$(grep -E "^[0-9a-f]{64} [ *]$name\.tar\.gz\$" "$work/SHA256SUMS" | cut -d ' ' -f 1)
  found=$(sha256 "$work/$archive")
  [ "$expected" = "$found" ] || fail "$archive is damaged: its SHA-256 is $found, and $expected was published"
  gzip -dc "$work/$archive" | tar -xf - -C "$work" || fail "cannot unpack $archive"
  [ -x "$work/$name/bin/sidecore" ] || fail "$archive holds no bin/sidecore"
  "$work/$name/bin/sidecore" --version >/dev/null || fail "the program of $archive does not run here"
  (cd "$work/$name" && find . -type f -o -type l) | sed 's,^\./,,' | sort >"$work/new"

  list=$1/share/sidecore/installed
  : >"$work/folders"
  [ ! -f "$list" ] || sed -n '/\/$/p' "$list" >"$work/folders"
  mkdir -p "$1" || fail "cannot make $1; choose another folder with --prefix DIR"
  make_folder "$1" share/sidecore || fail "cannot write below $1; choose another folder with --prefix DIR"
  while IFS= read -r path; do
    make_folder "$1" "$(dirname "$path")" || fail "cannot write below $1; choose another folder with --prefix DIR"
    # In place by a rename: the program may be running.
    cp -P "$work/$name/$path" "$1/$path.new-$$" || fail "cannot write $1/$path"
    mv -f "$1/$path.new-$$" "$1/$path" || fail "cannot write $1/$path"
  done <"$work/new"
  sort -u "$work/folders" "$work/new" >"$work/list"
  if [ -f "$list" ]; then
    # What only the version before had.
    sort "$list" | comm -13 "$work/list" - >"$work/gone" 2>/dev/null || : >"$work/gone"
    remove "$1" "$work/gone"
  fi
  cp "$work/list" "$list"
  say "$("$1/bin/sidecore" --version) is installed: $1/bin/sidecore"
  case :$PATH: in
    *:"$1/bin":*) ;;
    *) say "$1/bin is not in PATH; add it: export PATH=\"$1/bin:\$PATH\"" ;;
  esac
  say "next: sidecore doctor"
}

# In a function, so that a download that was cut short runs nothing.
main() {
  prefix='' from='' version='' action=install
  while [ $# -gt 0 ]; do
    case $1 in
      --version | --prefix | --from)
        [ $# -ge 2 ] && [ -n "$2" ] || fail "$1 needs a value"
        case $1 in
          --version) version=${2#v} ;;
          --prefix) prefix=$2 ;;
          --from) from=${2%/} ;;
        esac
        shift
        ;;
      --uninstall) action=uninstall ;;
      -h | --help)
        usage
        exit 0
        ;;
      *) fail "unknown option $1; --help lists them" ;;
    esac
    shift
  done
  case $version in
    *[!0-9A-Za-z.+-]*) fail "$version is no version" ;;
  esac
  if [ -z "$prefix" ]; then
    prefix=/usr/local
    [ "$(id -u)" -eq 0 ] || prefix=${HOME:?is not set; give --prefix DIR}/.local
  fi
  case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
  esac
  if [ -z "$from" ]; then
    from=$releases/latest/download
    [ -z "$version" ] || from=$releases/download/v$version
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT TERM HUP
  $action "$prefix" "$from" "$version"
}

main "$@"
