//! Fair queueing of an engine's clients: the one that has used the least of its time goes first.
//!
//! Why here: turns that are equal in number are not equal in time. A client whose kernels take 10
//! ms would leave one whose kernels take 10 us a thousandth of the engine.
//!
//! Every user has an account of its used engine time, and within it every client has one. A request
//! starts at its user's account, but not before the *clock*, which is the start of the request that
//! was served last. The earliest start goes first, and among one user's clients the same rule
//! applies with the user's own clock. So a client that stays away for a while comes back with a
//! fair share, not with a claim on the past; and many clients of one user get no more than one.
//! (Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996; its section on hierarchies.)
//!
//! A client that asks again as soon as it is answered is away for that moment, and the engine
//! cannot take back a turn that it has given. So before a turn goes to a client that is ahead, the
//! engine looks out for one that was just answered and is behind. It does so for at most an eighth
//! of that client's deficit, and [`LOOKOUT_US_MAX`] at most (after Iyer and Druschel's anticipatory
//! scheduling, SOSP 2001).
//!
//! Must stay true: a client that asks is served at once unless another one is looked out for; a
//! client alone is never looked out for. One engine's thread. Times are in cycles; nothing here
//! reads them.

/// One client's account at this engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// Engine time used, on its user's clock.
    used: u64,
    /// The time of its last answer.
    answered: u64,
}

/// One user's account at this engine, for all of its clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    pub(super) uid: u32,
    /// Engine time used, on the clock of [`Turns`].
    used: u64,
    /// Start of the last served request of its clients, on the clock that these share.
    clock: u64,
}

impl User {
    pub(super) fn new(uid: u32) -> Self {
        Self {
            uid,
            used: 0,
            clock: 0,
        }
    }
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
    uid: u32,
    /// Its user's start, and its own among that user's clients.
    start: (u64, u64),
}

impl Turns {
    /// For a machine whose cycle counter makes `cycles_per_us` a microsecond.
    pub(super) fn new(cycles_per_us: f64) -> Self {
        Self {
            clock: 0,
            lookout_max: (LOOKOUT_US_MAX * cycles_per_us) as u64,
        }
    }

    #[inline]
    fn start(&self, user: &User, account: &Account) -> (u64, u64) {
        (user.used.max(self.clock), account.used.max(user.clock))
    }

    /// Compares one more asking client with `best`; returns the one to serve first.
    #[inline]
    pub(super) fn better(
        &self,
        best: Option<Turn>,
        seat: usize,
        user: &User,
        account: &Account,
    ) -> Turn {
        let start = self.start(user, account);
        match best {
            // Of equal starts the first one found stays: its turn moves it behind the other.
            Some(best) if best.start <= start => best,
            _ => Turn {
                seat,
                uid: user.uid,
                start,
            },
        }
    }

    /// True if that turn is to wait a little, because one of the `others`, which do not ask just
    /// now, is behind and likely to ask at once.
    pub(super) fn looks_out<'a>(
        &self,
        turn: Turn,
        others: impl Iterator<Item = (&'a User, &'a Account)>,
        now: u64,
    ) -> bool {
        let is_expected = |(user, other): (&User, &Account)| {
            let start = self.start(user, other);
            // One user's clients share a clock; those of two compare by their users' accounts.
            let behind = if user.uid == turn.uid {
                turn.start.1.saturating_sub(start.1)
            } else {
                turn.start.0.saturating_sub(start.0)
            };
            let patience = (behind / LOOKOUT_PART).min(self.lookout_max);
            now.saturating_sub(other.answered) < patience
        };
        others.into_iter().any(is_expected)
    }

    /// Accounts for a served turn, from `began` to `ended`.
    #[inline]
    pub(super) fn served(
        &mut self,
        turn: Turn,
        user: &mut User,
        account: &mut Account,
        began: u64,
        ended: u64,
    ) {
        let took = ended.saturating_sub(began);
        self.clock = self.clock.max(turn.start.0);
        // From the start, not from what was used: time spent away is no credit.
        user.used = turn.start.0 + took;
        user.clock = user.clock.max(turn.start.1);
        account.used = turn.start.1 + took;
        account.answered = ended;
    }
}

/// The longest look-out: a client that slept through a long turn of another takes 60 us and more to
/// wake up and ask again.
const LOOKOUT_US_MAX: f64 = 250.0;
/// A client is looked out for during this part of its deficit.
const LOOKOUT_PART: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that thinks, asks, and waits for the answer; times in cycles of a nanosecond.
    #[derive(Clone, Copy)]
    struct Client {
        uid: u32,
        kernel: u64,
        think: u64,
        account: Account,
        asks_at: u64,
        served: u64,
        longest_wait: u64,
    }

    fn client(kernel: u64, think: u64) -> Client {
        Client {
            uid: 0,
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
        let mut users: Vec<User> = (0..4).map(User::new).collect();
        while now < until {
            let mut best = None;
            for (seat, client) in clients.iter().enumerate() {
                if client.asks_at <= now {
                    let user = &users[client.uid as usize];
                    best = Some(turns.better(best, seat, user, &client.account));
                }
            }
            let away = clients.iter().filter(|client| client.asks_at > now);
            let away = away.map(|client| (&users[client.uid as usize], &client.account));
            let turn = best.filter(|&turn| !turns.looks_out(turn, away, now));
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
            let user = &mut users[client.uid as usize];
            turns.served(turn, user, &mut client.account, began, now);
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
    fn many_clients_of_one_user_get_no_more_than_one_of_another() {
        let mut clients = vec![client(20_000, 1_000); 9];
        clients[0].uid = 1;
        clients[8].kernel = 200_000;
        let (clients, idle) = run(clients, 1_000 * MS);
        assert!(idle < 30 * MS, "{idle}");
        let fair = 500 * MS;
        let one = clients[0].served;
        assert!(one.abs_diff(fair) < fair / 20, "{one}");
        // And the eight share theirs, whatever their kernels take.
        for client in &clients[1..] {
            let part = client.served;
            assert!(part.abs_diff(fair / 8) < fair / 100, "{part}");
        }
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
