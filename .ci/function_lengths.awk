# Prints "FILE FUNCTION LINES" of every function of more than `most` lines. clang-format has laid the
# files out, so a function ends at a brace that stands alone in the column where its first line begins.
FNR == 1 { split("", first); split("", text) }
/^ *[^ #}]/ {
  match($0, /^ */)
  if ($0 !~ /^ *(public|private|protected):/ && $0 !~ /^ *\/\//) {
    first[RLENGTH] = FNR
    text[RLENGTH] = $0
  }
}
/^ *}$/ {
  match($0, /^ */)
  lines = FNR - first[RLENGTH] + 1
  name = text[RLENGTH]
  if (!(RLENGTH in first) || lines <= most || name !~ /\(/) next
  if (name ~ /^ *(for|if|while|switch|else|do|try|case|default)[ (:]/) next
  sub(/\(.*/, "", name)
  sub(/^.*[ &*]/, "", name)
  if (name != "") print FILENAME, name, lines
}
