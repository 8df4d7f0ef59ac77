// interrupt.h - removes temporary files when a signal stops a command.
#pragma once
#include <string>

// From here on SIGINT, SIGTERM and SIGHUP remove the noted files, then end the process with their
// default action. Call before other threads start. Ignored signals (nohup) stay ignored. end:
// called if the signal does not end the process.
void remove_files_on_signals(void (*end)(int signal));
// Notes a file that is about to be written under a unique name.
void note_temporary(const std::string& path);
// From here on a signal removes no file: the noted ones are about to replace the old ones.
void keep_temporaries();
