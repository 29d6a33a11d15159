/* What the cases in C share: connections over 127.0.0.1, and names of errors.
 *
 * Why here: a case is compared line by line between the kernel's sockets and ours, so it prints
 * names and results, never times, ports or descriptors' numbers. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Where the case connects to: the loopback, unless the environment names another address. */
static inline in_addr_t case_address(void)
{
    const char *given = getenv("SIDECORE_CASES_V4");
    return given ? inet_addr(given) : htonl(INADDR_LOOPBACK);
}

/* A call that the case cannot do without. */
#define NEED(call) ({ __auto_type result_ = (call); if (result_ < 0) { \
        printf("%s: %s\n", #call, strerrorname_np(errno)); fflush(stdout); exit(1); } result_; })
/* What the call returned, or its error's name. */
#define TELL(call) tell(#call, call)

static inline void tell(const char *words, long result)
{
    if (result < 0)
        printf("%s: %s\n", words, strerrorname_np(errno));
    else
        printf("%s: %ld\n", words, result);
    fflush(stdout);
}

static inline struct sockaddr_in name_of(int fd)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    NEED(getsockname(fd, (struct sockaddr *)&name, &size));
    return name;
}

static inline int bound(int kind)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = case_address()};
    int fd = NEED(socket(AF_INET, kind, 0));
    NEED(bind(fd, (struct sockaddr *)&name, sizeof name));
    return fd;
}

static inline int listening(void)
{
    int fd = bound(SOCK_STREAM);
    NEED(listen(fd, 16));
    return fd;
}

static inline int connected_to(int server)
{
    struct sockaddr_in name = name_of(server);
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&name, sizeof name));
    return fd;
}

static inline void pair(int ends[2])
{
    int server = listening();
    ends[0] = connected_to(server);
    ends[1] = NEED(accept(server, NULL, NULL));
    close(server);
}

static inline void sleep_ms(long ms)
{
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
        ;
}
