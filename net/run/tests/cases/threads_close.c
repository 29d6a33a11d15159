/* Threads that make, use and close sockets beside one another: no number is mistaken for
 * another. */
#include "_case.h"

enum { THREADS = 4, TURNS = 150 };
static int server;
static long right[THREADS];

static void *serve(void *unused)
{
    (void)unused;
    for (int i = 0; i < THREADS * TURNS; i++) {
        int fd = NEED(accept(server, NULL, NULL));
        char text[8];
        NEED(recv(fd, text, 8, MSG_WAITALL));
        NEED(send(fd, text, 8, MSG_NOSIGNAL));
        close(fd);
    }
    return NULL;
}

static void *ask(void *number)
{
    long own = (long)number;
    for (int i = 0; i < TURNS; i++) {
        char text[9], answer[9] = "";
        int fd = connected_to(server);
        snprintf(text, sizeof text, "%02ld%06d", own, i);
        NEED(send(fd, text, 8, 0));
        if (recv(fd, answer, 8, MSG_WAITALL) == 8 && strcmp(text, answer) == 0)
            right[own]++;
        close(fd);
        int other = NEED(socket(AF_INET, i % 2 ? SOCK_DGRAM : SOCK_STREAM, 0));
        close(other);
    }
    return NULL;
}

int main(void)
{
    pthread_t server_thread, threads[THREADS];
    server = bound(SOCK_STREAM);
    NEED(listen(server, 128));
    pthread_create(&server_thread, NULL, serve, NULL);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, ask, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(server_thread, NULL);
    for (int i = 0; i < THREADS; i++)
        printf("thread %d: %ld of %d\n", i, right[i], TURNS);
    return 0;
}
