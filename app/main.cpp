#include "app/commands/commands.h"

int main(int argc, char** argv) { return axial::app::run_program(argc, argv); }
