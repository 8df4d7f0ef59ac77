// interrupt.h - a command that is stopped by a signal takes its temporary files with it.
#pragma once
#include <string>

// From here on SIGINT, SIGTERM and SIGHUP remove the files that were noted, then end the process as they would. Called
// before other threads start. A signal that is ignored (nohup) stays so.
// end: ends the process where a signal does not
void remove_files_on_signals(void (*end)(int signal));
// A file that is about to be written under a name which nothing else ever has.
void note_temporary(const std::string& path);
// From here on a signal removes no file: the old files are about to go, and the noted ones are what is left.
void keep_temporaries();
