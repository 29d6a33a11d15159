//! The commands and servers under test: for each its preparation, its use, and its invariants.
//!
//! Why here: a table, so that a new command is a few lines. Texts are run by `sh -e` with `$S` (the
//! program), `$IN` (files made once, only read) and `$OUT` (a folder of this run, empty at first).
//! Exit status 3 of `used` and `whole` means wrong bytes; every other failure of `used` is the
//! client's, which may get an error.

use serde::Serialize;

/// One command or server.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Run before each run, without failures.
    pub(crate) before: &'static str,
    /// The arguments of the program, which is traced. `$IN` and `$OUT` are replaced.
    pub(crate) run: &'static str,
    /// Of a server: the rest of its life.
    pub(crate) server: Option<Server>,
    /// Holds where the program reported success.
    pub(crate) whole: &'static str,
    /// Names that a failed run may leave in `$OUT`, in addition to those of `before`.
    pub(crate) may_leave: &'static [&'static str],
    /// Run after each run, without failures.
    pub(crate) after: &'static str,
    /// Part of the quick run.
    pub(crate) quick: bool,
}

/// A server's life: it is used once `ready` holds, and ended.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Server {
    pub(crate) ready: &'static str,
    pub(crate) used: &'static str,
    /// Ends it; empty: SIGTERM.
    pub(crate) stop: &'static str,
    /// Ends it where it rightly refuses twice: the written data cannot be kept.
    pub(crate) force: &'static str,
}

const COMMAND: Scenario = Scenario {
    name: "",
    before: "",
    run: "",
    server: None,
    whole: "",
    may_leave: &[],
    after: "",
    quick: false,
};

/// Made once for all scenarios.
pub(crate) const INPUTS: &str = r#"
mkdir tree && cp /etc/passwd tree/a && mkdir tree/sub && head -c 300000 /dev/urandom > tree/sub/b
ln -s a tree/link && ln tree/a tree/hard
head -c 400000 /dev/zero > disk && cat tree/sub/b tree/a >> disk && truncate -s 1M disk
gzip -k disk
$S block pack tree -o tree.img 2>/dev/null
$S block pack disk -o disk.img --frame 16KiB 2>/dev/null
truncate -s 8M ext4 && mkfs.ext4 -q -F ext4 && $S block pack ext4 -o ext4.img 2>/dev/null
$S block clone disk.img disk.ovl
head -c 300000 tree/sub/b | split -b 60000 --filter='zstd -qc' - > many.zst
$S phylo simulate --taxa 8 --sites 200 --model JC --seed 3 -o m.phy --tree-out t.nwk
(cat t.nwk; cat t.nwk) > trees.nwk
printf 'int main(void){return 0;}' > null.c
"#;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "pack a file",
        run: "block pack $IN/disk -o $OUT/o --engines 2",
        whole: "$S block unpack $OUT/o -o $OUT/back && { cmp $IN/disk $OUT/back || exit 3; }",
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "pack a directory",
        run: "block pack $IN/tree -o $OUT/o --engines 2",
        whole: "$S block unpack $OUT/o -o $OUT/back && { fsck.erofs $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "pack as cloop",
        run: "block pack $IN/disk -o $OUT/o --format cloop --engines 2",
        whole: "$S block unpack $OUT/o -o $OUT/back && { cmp $IN/disk $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "pack what is compressed",
        run: "block pack $IN/disk.gz --decompress --tree -o $OUT/o --engines 2",
        whole: "$S block unpack $OUT/o -o $OUT/back && { cmp $IN/disk $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "unpack",
        run: "block unpack $IN/disk.img -o $OUT/o --engines 2",
        whole: "cmp $IN/disk $OUT/o || exit 3",
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "info",
        run: "block info $IN/disk.img --json",
        whole: "grep -q 1048576 $OUT/stdout || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "verify",
        run: "block verify $IN/disk.img --engines 2",
        ..COMMAND
    },
    Scenario {
        name: "index",
        run: "block index $IN/many.zst -o $OUT/o --engines 2",
        whole: "$S block unpack $IN/many.zst --sidx $OUT/o -o $OUT/back && \
                { cmp $IN/tree/sub/b $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "clone",
        run: "block clone $IN/disk.ovl $OUT/o",
        whole: "$S block export $IN/disk.img --overlay $OUT/o -o $OUT/back && \
                { cmp $IN/disk $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "diff",
        run: "block diff $IN/disk.img $IN/disk.ovl --engines 2",
        ..COMMAND
    },
    Scenario {
        name: "commit",
        run: "block commit $IN/disk.img $IN/disk.ovl -o $OUT/o --engines 2",
        whole: "$S block unpack $OUT/o -o $OUT/back && { cmp $IN/disk $OUT/back || exit 3; }",
        ..COMMAND
    },
    Scenario {
        name: "export",
        run: "block export $IN/disk.img -o $OUT/o --engines 2",
        whole: "cmp $IN/disk $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "serve over NBD",
        before: "cp $IN/disk.ovl $OUT/d.ovl",
        run: "block serve $IN/disk.img --nbd unix:$OUT/sock --overlay $OUT/d.ovl --engines 2",
        server: Some(Server {
            ready: "grep -q ready $OUT/stdout",
            used: "cd $OUT; nbdcopy nbd+unix:///?socket=$OUT/sock back && \
                   { cmp $IN/disk back || exit 3; }",
            stop: "",
            force: "",
        }),
        may_leave: &["sock", "sock.lock"],
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "write over NBD",
        before: "cp $IN/disk.ovl $OUT/d.ovl",
        run: "block serve $IN/disk.img --nbd unix:$OUT/sock --overlay $OUT/d.ovl --engines 2",
        server: Some(Server {
            ready: "grep -q ready $OUT/stdout",
            used: "nbdcopy --flush $IN/tree/sub/b nbd+unix:///?socket=$OUT/sock && \
                   touch $OUT/wrote",
            stop: "",
            force: "",
        }),
        whole: "if [ -e $OUT/wrote ]; then \
                $S block export $IN/disk.img --overlay $OUT/d.ovl -o $OUT/back; \
                cmp -n 300000 $IN/tree/sub/b $OUT/back || exit 3; fi",
        may_leave: &["sock", "sock.lock"],
        ..COMMAND
    },
    Scenario {
        name: "mount",
        before: "mkdir $OUT/m",
        run: "block mount $IN/tree.img $OUT/m --engines 2",
        server: Some(Server {
            ready: "mountpoint -q $OUT/m",
            used: "cat $OUT/m/sub/b > $OUT/back && { cmp $IN/tree/sub/b $OUT/back || exit 3; }",
            stop: "$S block umount $OUT/m",
            force: "",
        }),
        ..COMMAND
    },
    Scenario {
        name: "mount without root's parsers",
        before: "mkdir $OUT/m",
        run: "block mount --rootless $IN/tree.img $OUT/m --engines 2",
        server: Some(Server {
            ready: "mountpoint -q $OUT/m",
            used: "cat $OUT/m/sub/b > $OUT/back && { cmp $IN/tree/sub/b $OUT/back || exit 3; }",
            stop: "$S block umount $OUT/m",
            force: "",
        }),
        ..COMMAND
    },
    Scenario {
        name: "mount with an overlay",
        before: "mkdir $OUT/m",
        run: "block mount $IN/ext4.img $OUT/m --fs ext4 --overlay $OUT/o.ovl --engines 2",
        server: Some(Server {
            ready: "mountpoint -q $OUT/m",
            used: "cp $IN/tree/sub/b $OUT/m/ && sync -f $OUT/m/b && touch $OUT/wrote",
            stop: "$S block umount $OUT/m",
            // The written data is given up.
            force: "pkill -KILL -f \"[b]ackground-child.*$OUT/m\"; \
                    while pgrep -f \"[b]ackground-child.*$OUT/m\"; do sleep 0.1; done; \
                    $S block umount $OUT/m",
        }),
        whole: "if [ -e $OUT/wrote ]; then \
                $S block mount $IN/ext4.img $OUT/m --fs ext4 --overlay $OUT/o.ovl; same=0; \
                cmp $IN/tree/sub/b $OUT/m/b || same=3; $S block umount $OUT/m; exit $same; fi",
        may_leave: &["o.ovl"],
        ..COMMAND
    },
    Scenario {
        name: "umount",
        before: "mkdir $OUT/m; $S block mount $IN/tree.img $OUT/m",
        run: "block umount $OUT/m",
        whole: "! mountpoint -q $OUT/m",
        after: "if mountpoint -q $OUT/m; then $S block umount $OUT/m; fi",
        ..COMMAND
    },
    Scenario {
        name: "attach",
        run: "block attach $IN/disk.img --engines 2",
        server: Some(Server {
            ready: "test -b \"$(head -1 $OUT/stdout)\"",
            used: "cat $(head -1 $OUT/stdout) > $OUT/back && { cmp $IN/disk $OUT/back || exit 3; }",
            stop: "$S block detach $(head -1 $OUT/stdout)",
            force: "",
        }),
        ..COMMAND
    },
    Scenario {
        name: "daemon",
        run: "daemon --socket $OUT/d.sock --engines 1 --oversubscribe",
        server: Some(Server {
            ready: "grep -q ready $OUT/stdout",
            used: "timeout 10 $S offload call sum_f64 --input $IN/disk --socket $OUT/d.sock",
            stop: "",
            force: "",
        }),
        may_leave: &["d.sock", "d.sock.lock"],
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "offload call",
        before: "$S daemon --socket $OUT/d.sock --engines 1 > $OUT/d.out & echo $! > $OUT/d.pid; \
                 until grep -q ready $OUT/d.out; do sleep 0.02; done",
        run: "offload call sum_f64 --input $IN/disk --socket $OUT/d.sock",
        after: "timeout 10 $S offload call sum_f64 --input $IN/disk --socket $OUT/d.sock || \
                exit 3; \
                kill $(cat $OUT/d.pid)",
        may_leave: &["d.sock", "d.sock.lock"],
        ..COMMAND
    },
    Scenario {
        name: "top",
        before: "$S daemon --socket $OUT/d.sock --engines 1 > $OUT/d.out & echo $! > $OUT/d.pid; \
                 until grep -q ready $OUT/d.out; do sleep 0.02; done",
        run: "top --once --socket $OUT/d.sock",
        after: "kill $(cat $OUT/d.pid)",
        may_leave: &["d.sock", "d.sock.lock"],
        ..COMMAND
    },
    Scenario {
        name: "net up",
        before: "printf '[nic]\\nkind = \"tap\"\\nname = \"sct0\"\\nhost = [\"10.77.0.1/24\"]\\n\
                 [stack]\\naddresses = [\"10.77.0.2/24\"]\\n' > $OUT/c.toml",
        run: "net up $OUT/c.toml --socket $OUT/n.sock",
        server: Some(Server {
            ready: "grep -q ready $OUT/stdout",
            used: "timeout 5 ping -c 1 -W 2 10.77.0.2",
            stop: "",
            force: "",
        }),
        may_leave: &["n.sock", "n.sock.lock"],
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "net http",
        before: "printf '[nic]\\nkind = \"tap\"\\nname = \"sct0\"\\nhost = [\"10.77.0.1/24\"]\\n\
                 [stack]\\naddresses = [\"10.77.0.2/24\"]\\n' > $OUT/c.toml",
        run: "net http --config $OUT/c.toml",
        server: Some(Server {
            ready: "grep -q . $OUT/stdout",
            used: "timeout 5 curl -s -o $OUT/got http://10.77.0.2/bytes/10000",
            stop: "",
            force: "",
        }),
        ..COMMAND
    },
    Scenario {
        name: "net run on the loopback",
        run: "net run --loopback -- /usr/bin/python3 -c \
              import\u{a0}socket;s=socket.create_server(('127.0.0.1',0));\
              c=socket.create_connection(s.getsockname());d,p=s.accept();c.sendall(b'x');\
              print(d.recv(1))",
        ..COMMAND
    },
    Scenario {
        name: "rdma serve",
        run: "rdma serve 127.0.0.1:7174 --timeout-s 5",
        server: Some(Server {
            ready: "ss -Hltn 'sport = :7174' | grep -q .",
            used: "timeout 10 $S rdma ping 127.0.0.1:7174 --rounds 2 --timeout-s 3",
            stop: "",
            force: "",
        }),
        ..COMMAND
    },
    Scenario {
        name: "evaluate",
        run: "phylo evaluate --msa $IN/m.phy --tree $IN/t.nwk --model JC --engines 2 \
              --site-lnl $OUT/o",
        whole: "grep -q . $OUT/o || exit 3",
        quick: true,
        ..COMMAND
    },
    Scenario {
        name: "search",
        run: "phylo search --msa $IN/m.phy --model JC --starts 2 --bootstraps 2 --engines 2 \
              --prefix $OUT/o",
        whole: "$S phylo compare $OUT/o.bestTree $IN/t.nwk || exit 3",
        may_leave: &["o.*"],
        after: "$S phylo search --msa $IN/m.phy --model JC --starts 2 --bootstraps 2 --engines 2 \
                --prefix $OUT/o && $S phylo compare $OUT/o.bestTree $IN/t.nwk || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "simulate",
        run: "phylo simulate --tree $IN/t.nwk --sites 200 --model JC --seed 5 -o $OUT/o",
        whole: "$S phylo evaluate --msa $OUT/o --tree $IN/t.nwk --model JC || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "consensus",
        run: "phylo consensus $IN/trees.nwk -o $OUT/o",
        whole: "$S phylo compare $OUT/o $IN/t.nwk || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "root",
        run: "phylo root --mad $IN/t.nwk -o $OUT/o",
        whole: "grep -q ';' $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "ancestors",
        run: "phylo ancestors --msa $IN/m.phy --tree $IN/t.nwk --model JC --engines 2 -o $OUT/o",
        whole: "grep -q . $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "draw",
        run: "phylo draw $IN/t.nwk -o $OUT/o",
        whole: "grep -q '</svg>' $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "test",
        run: "phylo test --msa $IN/m.phy --trees $IN/trees.nwk --model JC --replicates 100 \
              --engines 2",
        ..COMMAND
    },
    Scenario {
        name: "support",
        run: "phylo support --tree $IN/t.nwk --bootstraps $IN/trees.nwk -o $OUT/o",
        whole: "grep -q ';' $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "models",
        run: "phylo models --msa $IN/m.phy --tree $IN/t.nwk --free-rates-max 0 --engines 2 \
              -o $OUT/o",
        whole: "grep -q . $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "cell",
        run: "cell table1 --svg $OUT/o",
        whole: "grep -q '</svg>' $OUT/o || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "man",
        run: "man $OUT/o",
        may_leave: &["o"],
        ..COMMAND
    },
    Scenario {
        name: "completions",
        run: "completions bash",
        whole: "bash -n $OUT/stdout || exit 3",
        ..COMMAND
    },
    Scenario {
        name: "doctor",
        run: "doctor --json",
        ..COMMAND
    },
    Scenario {
        name: "papers",
        run: "papers --no-run --state $OUT/state -o $OUT/o",
        whole: "grep -q '</html>' $OUT/o || exit 3",
        may_leave: &["state"],
        ..COMMAND
    },
];
