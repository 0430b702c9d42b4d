/* plain is a workload of the end-to-end tests that is not written in Go, whose runtime raises
 * its own limit of open files before main. Every call adds "WORD SOFT HARD" to FILE.
 *
 *   plain FILE WORD        and end with 0
 *   plain FILE WORD stay   and stay until SIGTERM, then end with 0
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void end(int signal) {
	(void)signal;
	_exit(0);
}

int main(int count, char **args) {
	struct rlimit files;
	char line[256];
	int n, out;

	if (count < 3 || getrlimit(RLIMIT_NOFILE, &files) != 0)
		return 64;
	signal(SIGTERM, end);
	n = snprintf(line, sizeof line, "%s %llu %llu\n", args[2],
		     (unsigned long long)files.rlim_cur, (unsigned long long)files.rlim_max);
	out = open(args[1], O_WRONLY | O_APPEND | O_CREAT, 0644);
	if (out < 0 || write(out, line, (size_t)n) != n || close(out) != 0)
		return 65;
	while (count > 3)
		pause();
	return 0;
}
