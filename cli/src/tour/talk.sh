# One nc listens at ADDRESS PORT and prints; another one sends a line.
timeout 20 nc -l -N "$1" "$2" &
until echo "hello from nc" | timeout 20 nc -N "$1" "$2"; do sleep 0.1; done
wait
