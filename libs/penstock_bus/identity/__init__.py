"""
Who may connect to the servers, and what each may do there.

In reading order:

* ``logins``: The files that hold logins, and where they are found.
* ``login_tokens``: The token of a login, read where it is kept and renewed before it ends.
* ``identity_provider``: How clients get and renew tokens: discovery, the device grant.
* ``claims``: Keys and signed claims as NATS has them.
* ``nonce``: The answer to a server's nonce, for who signs nothing else.
* ``access``: Which subjects each service, extension and person may use.
* ``keyring``: The one secret of a server's owner, and all that is signed with it.
* ``issuer``: Accounts and logins for people, while the server runs.
* ``token_verifier``: Whose an identity provider's token is, and whether it counts.
* ``callout``: The admission of people who come with such a token.
* ``issuer_requests``: What is asked of an issuer, and why it refuses.
* ``node_issuer``: Tokens and logins of nodes.
* ``certificates``: The authority and the certificate of servers that listen beyond their machine.
"""
