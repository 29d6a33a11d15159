/* ppoll, pselect and epoll_pwait let a blocked signal in while they wait, and not after. */
#include "_case.h"

static volatile int handled;

static void handler(int number)
{
    (void)number;
    handled++;
}

#define SHOW(call) do { handled = 0; raise(SIGUSR1); printf("pending: %d\n", handled); \
        TELL(call); printf("handled: %d\n", handled); fflush(stdout); } while (0)

int main(void)
{
    int ends[2];
    sigset_t blocked, none;
    struct sigaction action = {.sa_handler = handler};
    struct timespec limit = {2, 0};
    pair(ends);
    NEED(sigaction(SIGUSR1, &action, NULL));
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    NEED(sigprocmask(SIG_BLOCK, &blocked, NULL));
    struct pollfd wanted = {ends[1], POLLIN, 0};
    SHOW(ppoll(&wanted, 1, &limit, &none));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    SHOW(pselect(ends[1] + 1, &set, NULL, NULL, &limit, &none));
    int epoll = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
    SHOW(epoll_pwait(epoll, &event, 1, 2000, &none));
    NEED(send(ends[0], "x", 1, 0));
    TELL(ppoll(&wanted, 1, &limit, &none));
    TELL(epoll_pwait(epoll, &event, 1, 2000, &none));
    return 0;
}
