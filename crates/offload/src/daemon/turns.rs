//! Fair queueing of an engine's clients: the one that has used the least of its time goes first.
//!
//! Why here: turns that are equal in number are not equal in time. A client whose kernels take 10
//! ms would leave one whose kernels take 10 us a thousandth of the engine.
//!
//! Every client has an account: how much of the engine's time it has used. A request starts at its
//! client's account, but not before the *clock*, which is the start of what was served last; the
//! earliest start goes first. Who stays away for a while thus comes back with what is just now, not
//! with a claim on the past. (Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996.)
//!
//! A client that asks again as soon as it is answered is away for that moment, and the engine
//! cannot take back a turn that it has given. So before a turn goes to a client that is ahead, the
//! engine looks out for one that was just answered and is behind: for an eighth at most of what it
//! is behind, and [`LOOKOUT_US_MAX`] at most (after Iyer and Druschel's anticipatory scheduling,
//! SOSP 2001).
//!
//! Must stay true: where one asks and nobody else is looked out for, it is served at once; a client
//! alone is never looked out for. One engine's thread. Times are in cycles; nothing here reads
//! them.

/// One client's account at this engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// Engine time used, on the clock of [`Turns`].
    used: u64,
    /// The time of its last answer.
    answered: u64,
}

/// The virtual clock of one engine, and the fair choice between its clients.
#[derive(Debug)]
pub(super) struct Turns {
    clock: u64,
    lookout_max: u64,
}

/// A request that could be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) seat: usize,
    start: u64,
}

impl Turns {
    /// For a machine whose cycle counter makes `cycles_per_us` a microsecond.
    pub(super) fn new(cycles_per_us: f64) -> Self {
        Self {
            clock: 0,
            lookout_max: (LOOKOUT_US_MAX * cycles_per_us) as u64,
        }
    }

    /// Compares one more asking client with `best`; returns the one to serve first.
    #[inline]
    pub(super) fn better(&self, best: Option<Turn>, seat: usize, account: &Account) -> Turn {
        let start = account.used.max(self.clock);
        match best {
            Some(best) if best.start <= start => best,
            _ => Turn { seat, start },
        }
    }

    /// True if that turn is to wait a little, because one of the `others`, who do not ask just now,
    /// is behind and likely to ask at once.
    pub(super) fn looks_out<'a>(
        &self,
        turn: Turn,
        others: impl Iterator<Item = &'a Account>,
        now: u64,
    ) -> bool {
        let is_expected = |other: &Account| {
            let behind = turn.start.saturating_sub(other.used.max(self.clock));
            let patience = (behind / LOOKOUT_PART).min(self.lookout_max);
            now.saturating_sub(other.answered) < patience
        };
        others.into_iter().any(is_expected)
    }

    /// Accounts for a served turn, from `began` to `ended`.
    #[inline]
    pub(super) fn served(&mut self, turn: Turn, account: &mut Account, began: u64, ended: u64) {
        self.clock = self.clock.max(turn.start);
        account.used = turn.start + ended.saturating_sub(began);
        account.answered = ended;
    }
}

/// The longest look-out: a client that slept through a long turn of another takes 60 us and more to
/// wake up and ask again.
const LOOKOUT_US_MAX: f64 = 250.0;
/// A client is looked out for during this part of what it is behind.
const LOOKOUT_PART: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that thinks, asks, and waits for the answer; times in cycles of a nanosecond.
    #[derive(Clone, Copy)]
    struct Client {
        kernel: u64,
        think: u64,
        account: Account,
        asks_at: u64,
        served: u64,
        longest_wait: u64,
    }

    fn client(kernel: u64, think: u64) -> Client {
        Client {
            kernel,
            think,
            account: Account::default(),
            asks_at: think,
            served: 0,
            longest_wait: 0,
        }
    }

    /// Runs an engine for `until`; gives the clients and the time that it stood idle.
    fn run(mut clients: Vec<Client>, until: u64) -> (Vec<Client>, u64) {
        let (mut turns, mut now, mut idle) = (Turns::new(1000.0), 0, 0);
        while now < until {
            let mut best = None;
            for (seat, client) in clients.iter().enumerate() {
                if client.asks_at <= now {
                    best = Some(turns.better(best, seat, &client.account));
                }
            }
            let away = clients.iter().filter(|client| client.asks_at > now);
            let turn = best
                .filter(|&turn| !turns.looks_out(turn, away.map(|client| &client.account), now));
            let Some(turn) = turn else {
                now += 100;
                idle += 100;
                continue;
            };
            let client = &mut clients[turn.seat];
            client.longest_wait = client.longest_wait.max(now - client.asks_at);
            let began = now;
            now += client.kernel;
            client.served += client.kernel;
            turns.served(turn, &mut client.account, began, now);
            client.asks_at = now + client.think;
        }
        (clients, idle)
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn long_kernels_do_not_starve_short_ones() {
        for think in [200, 1_000, 5_000] {
            let (clients, idle) = run(
                vec![client(10 * MS, think), client(10_000, think)],
                4_000 * MS,
            );
            let used = clients[0].served + clients[1].served;
            for client in &clients {
                let part = client.served as f64 / used as f64;
                assert!(
                    (0.45..0.55).contains(&part),
                    "{part} with a pause of {think}"
                );
            }
            // The short ones' own pauses, while the long one is looked past.
            let pauses = clients[1].served / clients[1].kernel * (think + 100);
            assert!(idle <= pauses + 40 * MS, "idle for {idle}, pauses {pauses}");
        }
    }

    #[test]
    fn equal_clients_take_turns_and_the_engine_is_never_idle() {
        let (clients, idle) = run(vec![client(20_000, 1_000); 4], 1_000 * MS);
        let fair = 250 * MS;
        for client in &clients {
            assert!(
                client.served.abs_diff(fair) < fair / 50,
                "{}",
                client.served
            );
            assert!(client.longest_wait <= 4 * 20_000);
        }
        assert!(idle < 10_000);
    }

    #[test]
    fn who_was_away_has_no_claim_on_the_past() {
        // Two that work all the time, and one that comes for 50 ms after a second.
        let mut late = client(20_000, 1_000);
        late.asks_at = 1_000 * MS;
        let (clients, _) = run(
            vec![client(20_000, 1_000), client(20_000, 1_000), late],
            1_060 * MS,
        );
        let fair = 20 * MS;
        assert!(
            clients[2].served.abs_diff(fair) < fair / 10,
            "{}",
            clients[2].served
        );
    }

    #[test]
    fn who_is_alone_or_has_no_hasty_rival_never_waits() {
        let (clients, _) = run(vec![client(10 * MS, 1_000)], 1_000 * MS);
        assert_eq!(clients[0].longest_wait, 0);
        // The other one comes once in 20 ms: it is not worth looking out for, but a moment.
        let (clients, idle) = run(vec![client(MS, 1_000), client(10_000, 20 * MS)], 2_000 * MS);
        assert!(idle < 2_000 * MS / 100, "{idle}");
        assert!(clients[0].served > 1_950 * MS);
        assert!(clients[1].longest_wait <= MS);
    }
}
