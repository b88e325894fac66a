/* libtensorhub.so as a far later release may have it: the functions that tensorhub looks up, another ABI. */
unsigned th_abi_version(void) { return 99; }
void th_last_error(void) {}
void th_status_name(void) {}
void th_buffer_bytes(void) {}
void th_operation_take_client(void) {}
void th_operation_take_buffer(void) {}
void th_operation_take_controller(void) {}
void th_string_free(void) {}
void th_client_free(void) {}
void th_buffer_free(void) {}
void th_controller_free(void) {}
void th_operation_free(void) {}
void th_receive_close(void) {}
