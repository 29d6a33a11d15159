/* vfork: the child moves a connection to its standard output and executes; the parent goes on. */
#include "_case.h"

int main(void)
{
    for (volatile int turn = 0; turn < 3; turn++) {
        int ends[2], status;
        char text[100] = "";
        pair(ends);
        pid_t pid = vfork();
        if (pid == 0) {
            dup2(ends[1], 1);
            execl("/bin/echo", "echo", "from vfork", NULL);
            _exit(9);
        }
        close(ends[1]);
        ssize_t count = NEED(recv(ends[0], text, sizeof text, MSG_WAITALL));
        NEED(waitpid(pid, &status, 0));
        printf("%zd %.*s status %d\n", count, (int)count - 1, text, WEXITSTATUS(status));
        close(ends[0]);
    }
    int server = listening();
    pid_t pid = vfork();
    if (pid == 0) {
        int client = connected_to(server);
        _exit(send(client, "x", 1, 0) == 1 ? 6 : 7);
    }
    int status;
    char byte;
    NEED(waitpid(pid, &status, 0));
    int accepted = NEED(accept(server, NULL, NULL));
    printf("connected within vfork: %d\n", WEXITSTATUS(status));
    TELL(recv(accepted, &byte, 1, 0));
    return 0;
}
