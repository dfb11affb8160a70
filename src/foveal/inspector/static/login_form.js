/**
 * The form of the login page keeps the fragment of the address, such as `#e412`.
 *
 * Browsers add the fragment of a request to where it is redirected, but a form is sent to an address without one.
 *
 * @module
 */

document.querySelector('form[action="login"]')?.setAttribute("action", `login${location.hash}`);
