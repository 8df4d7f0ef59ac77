// interrupt.h - removes temporary files when a signal stops a command.
#pragma once
#include <string>

// After this call, SIGINT, SIGTERM and SIGHUP remove the noted files and then end the process by
// their default action. Call it before other threads start. Ignored signals (nohup) stay ignored.
// end: called if the signal does not end the process.
void remove_files_on_signals(void (*end)(int signal));
// Notes a file that is about to be written under a temporary name, for removal.
void note_temporary(const std::string& path);
// After this call, signals remove no file, because noted files are about to replace old ones.
void keep_temporaries();
