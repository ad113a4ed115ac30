# A machine: it waits to be told which cluster to join, and lives until it is killed.
# Run as: sh -c <this> bigfleet-localproc-agent <directory>, in a session of its own; standard input is the
# directory's lock, which nobody else can take while this process lives.
cd "$1" || exit 1
exec 8<>inbox
read -r stat </proc/$$/stat
set -- $stat
echo "$$@${22}" >ref # the start time tells this process from a later one with its number
while read -r operation cluster <&8; do
    sh ./bootstrap "$cluster" </dev/null 8<&-
    echo "$?" >"exit.$operation"
done
