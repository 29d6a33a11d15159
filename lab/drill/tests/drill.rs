//! The scripts of `tests/drill/`, each a case of its own, and the parser under damaged text.
//!
//! A file there holds the scripts of a subject, each under a line `-- NAME.drill --`. A
//! script's head names its rule and document. `sidecore net drill FILE` plays a file by hand.

use proptest::prelude::*;
use sidecore_net_drill::{parse, parts, run};
use std::collections::BTreeMap;
use std::path::Path;

/// The scripts of all files: where each stands, and its text.
fn scripts() -> BTreeMap<String, (String, usize, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drill");
    let mut scripts = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder of scripts") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file of scripts");
        let file = path.file_name().expect("a name").to_string_lossy();
        for part in parts(&text) {
            let stem = part.name.strip_suffix(".drill").expect("NAME.drill");
            let place = (file.to_string(), part.lines_before, part.text.to_owned());
            let other = scripts.insert(stem.replace('-', "_"), place);
            assert!(other.is_none(), "{} stands twice", part.name);
        }
    }
    scripts
}

fn play(name: &str) {
    let scripts = scripts();
    let (file, lines_before, text) = scripts.get(name).expect("a script of that name");
    if let Err(error) = run(file, text) {
        panic!("{name}, after line {lines_before} of {error}");
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*

        /// No script lies there unplayed.
        #[test]
        fn every_script_is_a_case() {
            let cases = [$(stringify!($name)),*];
            for name in scripts().keys() {
                assert!(cases.contains(&name.as_str()), "{name} is not in the list");
            }
        }
    };
}

cases! {
    accecn_active accecn_active_fields accecn_answers accecn_final_ack accecn_marks
    accecn_passive accecn_reduces accecn_simultaneous accecn_super_segments accecn_syn_again
    accecn_syn_cookies accecn_syn_lost accecn_synack_lost accecn_wrap ack_out_of_range backlog
    bbr_startup close_active close_data_after close_fin_out_of_order close_fin_retransmit
    close_fin_with_data close_half close_linger_zero close_passive close_peer_resets
    close_simultaneous close_unread connect_options connect_user_timeout cork cubic_loss
    cwnd_not_used data_overlap delayed_ack ecn_active ecn_active_answer_late ecn_active_refused
    ecn_active_syn_lost ecn_active_v6 ecn_echo_reduces ecn_echo_reno ecn_fallback_passive
    ecn_loss_after_lenience ecn_loss_in_window ecn_mark_out_of_order ecn_marks_echoed
    ecn_not_asked ecn_not_offered ecn_passive ecn_retransmission ecn_retransmission_timeout
    ecn_simultaneous ecn_simultaneous_passive ecn_super_segments ecn_syn_cookies ecn_tail_probe
    ecn_undo ecn_undo_forbidden ecn_window_of_one ecn_window_probe epoll fin_wait_2_timeout
    fragments fragments_v6 half_open_reset icmp_echo icmp_echo_v6 icmp_unreachable
    icmp_unreachable_open idle_restart info_board initial_window initial_window_jumbo keepalive
    keepalive_answered limited_transmit limits_timed listener_closed listener_options
    listener_segments more nagle newreno nodelay not_sent_low open_active open_active_v6
    open_blocking open_data_with_ack open_large_numbers open_lost_timeout open_lost_window
    open_passive open_refused open_simultaneous open_simultaneous_reset open_syn_retransmits
    open_synack_retransmits open_unacceptable_ack open_v6 open_v6_without_options
    open_without_options open_wrong_final_ack pacing pacing_recovery pacing_short_path
    pacing_window_closes paws peek pmtu pmtu_floor pmtu_v6 rack_duplicate_patience
    rack_lost_retransmission rack_reordered rack_reordering_timer rack_three_sacked
    rate_reduction record_end reno_growth reset_exact reset_in_window reset_unread rto
    rto_gives_up rto_slow_start rto_timestamps rtt_echo rtt_echo_syn sack_crumbs sack_overtaken
    sack_receiver sack_receiver_timestamps sack_reneged sack_several_holes send_buffer_doubled
    shutdown_read slow_start small_window_override small_window_sender stray_segments
    super_segments super_segments_rate syn_cookies syn_in_session syn_received_reset
    syn_with_data tail_loss_probe tail_loss_probe_needless tail_loss_probe_new_data
    time_wait_old_syn time_wait_reuse time_wait_timestamps timestamps_echo timestamps_missing
    traffic_class udp udp_v6 undo_duplicate undo_judged_once undo_no_echo undo_not_all
    undo_timeout urgent user_timeout user_timeout_window window_edges window_of_old_segment
    window_scale window_scale_too_large window_shrinks window_update write_blocking
    zero_window_long zero_window_probe zero_window_unanswered
}

/// Scripts that must fail, and their errors.
#[test]
fn what_is_wrong_is_said() {
    let open = "
        +0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
        +0 bind(3, ..., ...) = 0
        +0 listen(3, 1) = 0
        +0 < S 0:0(0) win 65535 <mss 1000>
    ";
    let cases = [
        ("+0 > S. 0:0(0) ack 2 <mss 1460>", "what it acknowledges"),
        ("+0 > S. 0:0(0) ack 1 <mss 1461>", "options"),
        ("+0 > S. 0:0(0) ack 1 win 1 <...>", "window"),
        ("+0 > . 0:0(0) ack 1 <...>", "flags"),
        ("+0 > [2] S. 0:0(0) ack 1 <...>", "flow"),
        ("+0 > udp (5)", "protocol"),
        (
            "+0.5 > S. 0:0(0) ack 1 <...>",
            "at 0.000000, expected 0.500000",
        ),
        ("+0.1 close(3) = 0", "does not expect"),
        ("", "does not expect"),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n+0.1 > . 1:1(0) ack 1",
            "nothing went out by 0.101",
        ),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n+0 accept(3, ..., ...) = 4",
            "it waits",
        ),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n+0...0.1 accept(3, ..., ...) = 4",
            "it waits",
        ),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n+0 close(9) = 0",
            "-1 EBADF, expected 0",
        ),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n%{ assert net_opened == 1 }%",
            "net_opened == 1",
        ),
        (
            "+0 > S. 0:0(0) ack 1 <...>\n%{ assert net_nonsense == 1 }%",
            "no value",
        ),
        ("+0 nonsense(3) = 0", "no call"),
        ("+0 < S 0:5(4)", "difference"),
        ("+0 < S 0:0(0) <mss>", "a number"),
        ("--mtu=9000", "before the first event"),
    ];
    for (line, wanted) in cases {
        let error = run("case", &format!("{open}\n{line}"))
            .expect_err(line)
            .to_string();
        assert!(error.contains(wanted), "{line}: {error}");
        assert!(error.starts_with("case:"), "{error}");
    }
    let error = run("case", "\n\n+0 close(3)")
        .expect_err("no result")
        .to_string();
    assert!(error.starts_with("case:3: "), "{error}");
}

/// The scripts of a file are played in turn, each from its own begin, and errors name the file's
/// lines.
#[test]
fn a_file_of_several_scripts_plays_all() {
    let open = "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n";
    let text = format!("-- one.drill --\n{open}-- two.drill --\n--mtu=9000\n{open}");
    assert_eq!(run("both", &text).expect("both come true"), 2);
    let error = run("both", &format!("{text}\n+0 close(9) = 0\n")).expect_err("no descriptor 9");
    assert!(error.to_string().starts_with("both:7: "), "{error}");
}

/// Fragments of scripts for the fuzz test, so that damaged scripts reach deep into the parser.
const PARTS: &[&str] = &[
    "+0",
    "0.1",
    "+0.1~+0.2",
    "0...1",
    "*",
    "<",
    ">",
    "[2]",
    "S",
    "S.",
    ".",
    "FP.",
    "-",
    "0:0(0)",
    "1:1001(1000)",
    "ack",
    "1",
    "win",
    "257",
    "<mss 1000,sackOK,TS val 1 ecr 0,nop,wscale 7>",
    "<...>",
    "<nop,nop,sack 1:2 3:4>",
    "udp",
    "icmp",
    "frag_needed",
    "mtu",
    "(5)",
    "echo_request id 1 seq 2 (3)",
    "socket(..., SOCK_STREAM, IPPROTO_TCP)",
    "bind(3, ..., ...)",
    "listen(3, 1)",
    "write(4, ..., 10)",
    "poll([{fd=3, events=POLLIN}], 1, -1)",
    "= 3",
    "= 0",
    "= -1 EAGAIN",
    "%{",
    "}%",
    "assert",
    "tcpi_state",
    "==",
    "*",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    "...",
    "|",
    "\"",
    "//",
    "/*",
    "*/",
    "--tso=on",
    "--mtu=68",
    "\n-- a.drill --\n",
    "4294967295",
    "99999999999999999999",
    "0x",
    "\n",
    "\n",
    "\n",
    "é",
    "\u{0}",
];

proptest! {
    /// No text causes a panic, whether it is read or played.
    #[test]
    fn any_text_ends(
        parts in prop::collection::vec(prop::sample::select(PARTS), 0..60),
        glue in "[ \n]?",
    ) {
        let text = parts.join(&glue);
        let _ = run("any", &text);
    }

    /// A real script with some characters changed is read, or refused with a line that it has.
    #[test]
    fn a_damaged_script_ends(
        number in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..5),
    ) {
        let scripts = scripts();
        let (_, _, text) = scripts.values().nth(number.index(scripts.len())).expect("a script");
        let mut text: Vec<char> = text.chars().collect();
        for (place, character) in damage {
            let place = place.index(text.len());
            text[place] = character;
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = parse("damaged", &text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count().max(1));
        }
        let _ = run("damaged", &text);
    }
}
