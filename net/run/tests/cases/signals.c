/* Calls that wait, and a signal with a handler: EINTR without SA_RESTART, going on with it; a time
 * limit on the socket turns the latter into EINTR as well. */
#include "_case.h"

static volatile int handled;
static pthread_t waiting;
static int client, accepted, server;

static void handler(int number)
{
    (void)number;
    handled++;
}

/* Signals the waiting thread, then gives it what it waits for. */
static void *interrupt(void *with_data)
{
    sleep_ms(80);
    pthread_kill(waiting, SIGUSR1);
    if (with_data) {
        sleep_ms(80);
        if (*(int *)with_data == client)
            NEED(send(client, "x", 1, 0));
        else
            connected_to(server);
    }
    return NULL;
}

static void install(int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    NEED(sigaction(SIGUSR1, &action, NULL));
    printf("%s\n", flags ? "SA_RESTART" : "no SA_RESTART");
}

#define WITH_SIGNAL(data, call) do { pthread_t other; handled = 0; \
        pthread_create(&other, NULL, interrupt, data); tell(#call, (call) >= 0 ? 0 : -1); \
        pthread_join(other, NULL); printf("handled %d\n", handled); fflush(stdout); } while (0)

int main(void)
{
    int ends[2];
    char byte;
    waiting = pthread_self();
    pair(ends);
    client = ends[0];
    accepted = ends[1];
    server = listening();
    struct pollfd wanted = {accepted, POLLIN, 0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    for (int turn = 0; turn < 2; turn++) {
        install(turn ? SA_RESTART : 0);
        int *data = turn ? &client : NULL, *connection = turn ? &server : NULL;
        WITH_SIGNAL(data, recv(accepted, &byte, 1, 0));
        WITH_SIGNAL(data, read(accepted, &byte, 1));
        WITH_SIGNAL(data, recvmsg(accepted, &message, 0));
        WITH_SIGNAL(connection, accept(server, NULL, NULL));
        WITH_SIGNAL(NULL, poll(&wanted, 1, 5000));
        int epoll = NEED(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN};
        NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &event));
        WITH_SIGNAL(NULL, epoll_wait(epoll, &event, 1, 5000));
    }
    struct timeval limit = {5, 0};
    NEED(setsockopt(accepted, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    NEED(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    puts("with SO_RCVTIMEO");
    WITH_SIGNAL(NULL, recv(accepted, &byte, 1, 0));
    WITH_SIGNAL(NULL, accept(server, NULL, NULL));
    int udp = bound(SOCK_DGRAM);
    install(0);
    WITH_SIGNAL(NULL, recvfrom(udp, &byte, 1, 0, NULL, NULL));
    NEED(send(client, "!", 1, 0));
    TELL(recv(accepted, &byte, 1, 0));
    return 0;
}
